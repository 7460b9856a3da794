"""What calibrations store, and the numbers that plans read and write, without ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from horoscale._tables import milliseconds
from horoscale.torch.parallel.planning import calibration
from horoscale.torch.parallel.planning.machine import (
    Averages,
    Link,
    Machine,
    Measured,
    Overheads,
    Shape,
    as_ring,
    ring_seconds,
)
from horoscale.torch.parallel.planning.measuring import (
    Rank,
    computing,
    group_shapes,
    slots_of,
)
from horoscale.torch.parallel.planning.numbers import bytes_of

LINK = Link(1e-5, 1e9)
GROUP = Measured(Shape(2, 1, 1), Link(1e-5, 1e9, ((1.0, 2.0),)), Averages(1e-4, 1e-5, 1e9, 0.5))
MACHINE = Machine(
    1e10, 1e10, 8, LINK, LINK, None, Link(1e-4, 1e8), 0.5, Overheads(1e-5, 1e-6, 1e-7), (GROUP,)
)


def test_figures_are_kept_for_their_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibration._read("key") is None
    calibration._write("key", MACHINE)
    assert calibration._read("key") == MACHINE
    (file,) = (tmp_path / "horoscale").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("{}")
    assert calibration._read("key") is None


def test_users_without_a_home_keep_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers whose user isn't in /etc/passwd: only the first rank looks for the file."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", staticmethod(homeless))
    calibration._write("key", MACHINE)
    assert calibration._read("key") is None


def test_bytes_are_read() -> None:
    assert bytes_of("1.5GiB") == 3 << 29
    assert bytes_of("2MB") == 2_000_000
    assert bytes_of(7) == 7
    for wrong in ("much", "-1GiB", 0):
        with pytest.raises(ValueError, match=r"bytes"):
            bytes_of(wrong)


def test_times_have_three_digits_or_more() -> None:
    times = (1.234e-5, 0.0234, 0.9996, 1.5, 12.345)
    assert [milliseconds(one) for one in times] == ["0.0123", "23.4", "1,000", "1,500", "12,345"]


def test_between_measured_sizes_times_are_on_lines() -> None:
    link = Link.through([(10.0, 1.0), (20.0, 2.0), (40.0, 8.0)])
    assert [link.seconds(n) for n in (1, 10, 15, 20, 30, 40)] == [1.0, 1.0, 1.5, 2.0, 5.0, 8.0]
    assert link.seconds(50) == pytest.approx(11.0)
    two = link.shared(2)
    assert two.seconds(10) == 1.0  # the latency is equally long
    assert two.seconds(40) == 15.0
    assert Link(1.0, 10.0).seconds(5) == 1.5


def test_a_ring_is_found_from_two_times() -> None:
    link = Link(1e-4, 1e8)
    small, large = ((n, ring_seconds(n, 4, link)) for n in (0.0, 1e7))
    found = as_ring(small, large, 4)
    assert found.latency == pytest.approx(link.latency)
    assert found.bandwidth == pytest.approx(link.bandwidth)


def test_each_way_in_which_axes_lie_is_measured_once() -> None:
    assert group_shapes([0]) == {}
    one_host = group_shapes([0] * 4)
    assert set(one_host) == {Shape(4, 1, 1), Shape(2, 1, 1)}
    two_hosts = group_shapes([0, 0, 1, 1])
    assert two_hosts == {
        Shape(2, 2, 1): [(0, 1, 2, 3)],
        Shape(2, 1, 1): [(0, 1), (2, 3)],
        Shape(1, 2, 2): [(0, 2), (1, 3)],
    }
    # Hosts with different numbers of ranks: all ranks together.
    assert group_shapes([0, 0, 1]) == {Shape(2, 2, 1): [(0, 1, 2)]}


def test_hosts_that_share_a_machine_share_its_cores() -> None:
    apart = [Rank(host, f"host{host}", 2, 1, f"kernel{host}") for host in range(4)]
    assert slots_of(apart) == [2.0] * 4
    assert computing(apart) == [True] * 4
    together = [one._replace(machine="kernel") for one in apart]
    assert slots_of(together) == [0.5] * 4
    assert computing(together) == [True, True, False, False]
    of_one = [one._replace(host=0) for one in together]
    assert slots_of(of_one) == [2.0] * 4
    bound = [one._replace(cores=1, machine=f"kernel {at}") for at, one in enumerate(of_one)]
    assert slots_of(bound) == [4.0] * 4
    assert computing(bound) == [True] * 4
