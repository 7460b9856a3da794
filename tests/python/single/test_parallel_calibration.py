"""What calibrations keep, and the numbers that plans read and write, without ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from horoscale.torch.parallel.planning import calibration
from horoscale.torch.parallel.planning.machine import Link, Machine
from horoscale.torch.parallel.planning.numbers import bytes_of, milliseconds

MACHINE = Machine(1e10, 1e10, 8, Link(1e-5, 1e9), Link(1e-5, 1e9), None, Link(1e-4, 1e8), 0.5)


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
    """As in containers whose user is in no /etc/passwd: the first rank alone looks for the file."""

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
