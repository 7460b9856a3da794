"""The launcher's parts that need no process."""

from __future__ import annotations

import os
import re
import resource
import selectors
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horoscale.runner import mpirun, results
from horoscale.runner.cores import available_cores
from horoscale.runner.environment import ExportError, exported
from horoscale.runner.fleet import FANOUT, divided
from horoscale.runner.host import HostSpec
from horoscale.runner.hosts import (
    Host,
    HostsError,
    Place,
    is_local,
    parse_hostfile,
    parse_hosts,
    place_ranks,
)
from horoscale.runner.output import LineSplitter, prefixed
from horoscale.runner.protocol import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_REPORT_BYTES,
    VERSION,
    Decoder,
    ProtocolError,
    checked_report,
    encode,
)
from horoscale.runner.reach import LOOPBACK, Beacon, Probe, own_addresses
from horoscale.runner.remote import RemoteShell, resolve_hosts
from horoscale.runner.report import Exit, failure_report
from horoscale.runner.text import printable

# ---------------------------------------------------------------- protocol

frames = st.lists(
    st.tuples(
        st.dictionaries(st.text(), st.integers() | st.text()).map(lambda d: {**d, "kind": "x"}),
        st.binary(max_size=300),
    ),
    max_size=5,
)


@given(frames, st.lists(st.integers(1, 50), min_size=1))
def test_frames_survive_any_cut(sent: list, sizes: list[int]) -> None:
    stream = b"".join(encode(header, payload) for header, payload in sent)
    decoder = Decoder()
    received = []
    position = turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        received += decoder.feed(stream[position : position + size])
        position += size
        turn += 1
    assert received == sent
    assert decoder.at_boundary()


def test_a_header_may_hold_bytes_that_are_not_text() -> None:
    odd = os.fsdecode(b"\xff\x80")
    ((header, _),) = Decoder().feed(encode({"kind": "start", "environment": {"ODD": odd}}))
    assert header["environment"]["ODD"] == odd


@pytest.mark.parametrize(
    "data",
    [
        b"Last login: today\n",
        b"HSR2" + bytes(8),
        b"x",
        b"HSR1" + (MAX_HEADER_BYTES + 1).to_bytes(4, "big") + bytes(4),
        b"HSR1" + bytes(4) + (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "big"),
        b"HSR1" + (2).to_bytes(4, "big") + bytes(4) + b"[]",
        b"HSR1" + (2).to_bytes(4, "big") + bytes(4) + b"{}",
        b"HSR1" + (2).to_bytes(4, "big") + bytes(4) + b"{x",
        b"HSR1" + (10).to_bytes(4, "big") + bytes(4) + b'{"kind":1}',
    ],
)
def test_what_is_no_frame_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(Decoder().feed(data))


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for(data: bytes) -> None:
    try:
        list(Decoder().feed(data))
    except ProtocolError:
        return
    assert b"HSR1".startswith(data[:4])


@given(st.binary(max_size=60), st.lists(st.integers(1, 9), min_size=1))
def test_what_login_scripts_print_is_skipped(text: bytes, sizes: list[int]) -> None:
    sent = {"kind": "hello"}, b"payload"
    stream = text.replace(b"HSR1", b"") + b"HS\n" + encode(*sent) + encode(*sent)
    decoder = Decoder(preface=True)
    received = []
    position = turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        received += decoder.feed(stream[position : position + size])
        position += size
        turn += 1
    assert received == [sent, sent]


def test_text_without_a_frame_is_refused_in_time() -> None:
    decoder = Decoder(preface=True)
    assert not list(decoder.feed(bytes(1 << 20)))
    with pytest.raises(ProtocolError, match="no frame within"):
        list(decoder.feed(bytes(100)))


def test_a_payload_beyond_the_bound_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="larger"):
        encode({"kind": "output"}, bytes(MAX_PAYLOAD_BYTES + 1))


# Possible reports of a supervisor: valid ones with any field changed, and anything else.
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
right_fields = st.fixed_dictionaries(
    {
        "version": st.just(VERSION),
        "machine": st.text(),
        "pid": st.integers(1, 1 << 22),
        "address": st.text(),
        "rank": st.integers(0, 3),
        "stream": st.sampled_from(["stdout", "stderr", "result"]),
        "status": st.integers(-64, 255),
        "error": st.text(),
        "greeted": st.booleans(),
        "pids": st.lists(st.integers(1, 1 << 22)),
        "text": st.text(),
    }
)
KINDS = ("hello", "reached", "output", "exit", "refused", "stuck", "lost", "note")
reports = st.builds(
    lambda kind, right, wrong: {**right, **wrong, "kind": kind},
    st.sampled_from(KINDS) | st.text(),
    right_fields,
    st.dictionaries(
        st.sampled_from(["host", "rank", "pids", "text", "greeted"]), values, max_size=2
    ),
)


@given(reports)
def test_a_report_is_right_or_refused(header: dict) -> None:
    """Accepted reports have the types that the launcher expects, and printable text."""
    try:
        report = checked_report(header)
    except ProtocolError:
        return
    assert report["kind"] in KINDS
    assert checked_report(report) == report
    for name, value in report.items():
        if name in ("host", "rank", "pid", "status", "version"):
            assert type(value) is int
        elif name == "pids":
            assert all(type(pid) is int for pid in value)
        elif name == "greeted":
            assert type(value) is bool
        else:
            assert value.isprintable()
            value.encode()


@given(st.lists(reports, max_size=3), st.data())
def test_any_stream_of_a_supervisor_is_read_or_refused(sent: list, data: st.DataObject) -> None:
    """Frames with some bytes changed: only a ProtocolError may result."""
    stream = bytearray(b"".join(encode(header) for header in sent))
    for _ in range(data.draw(st.integers(0, 3)) if stream else 0):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        for header, _ in Decoder(max_header_bytes=MAX_REPORT_BYTES).feed(bytes(stream)):
            checked_report(header)


def test_headers_are_held_in_bounds() -> None:
    for header in ({"kind": "note", "text": "x" * MAX_REPORT_BYTES},):
        with pytest.raises(ProtocolError, match="announces"):
            list(Decoder(max_header_bytes=MAX_REPORT_BYTES).feed(encode(header)))
    with pytest.raises(ProtocolError, match="at most 1000 numbers"):
        checked_report({"kind": "stuck", "pids": [1] * 1001})


@given(st.text())
def test_printable_text_is_one_line_and_stays_as_it_is(text: str) -> None:
    once = printable(text)
    assert once.isprintable()
    assert printable(once) == once


def test_printable_text() -> None:
    assert printable("\tgrün \x1b[1;31mrot\x1b[0m \n") == "        grün rot"
    assert printable("\x1b[2Ja\r\nb\u202e\ud800") == r"\x1b[2Ja\r\nb\u202e\ud800"


# ---------------------------------------------------------------- output


@given(st.lists(st.text("ab\r\n", max_size=6).map(str.encode), max_size=8))
def test_lines_are_the_same_however_the_stream_is_cut(pieces: list[bytes]) -> None:
    splitter = LineSplitter()
    blocks = [splitter.feed(piece) for piece in pieces]
    rest = splitter.finish()
    assert b"".join([*blocks, rest]) == b"".join(pieces)
    assert all(block.endswith((b"\n", b"\r")) for block in blocks if block)
    assert b"\n" not in rest
    assert b"\r" not in rest[:-1]
    for block in filter(None, blocks):
        lines = block.splitlines(keepends=True)
        assert prefixed(block, b"P:") == b"".join(b"P:" + line for line in lines)


def test_a_carriage_return_and_its_newline_are_one_end() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"a\r") == b""
    assert splitter.feed(b"\nb\rc") == b"a\r\nb\r"
    assert splitter.finish() == b"c"


def test_a_line_without_end_is_held_in_bounds() -> None:
    splitter = LineSplitter()
    piece = b"x" * (1 << 20)
    printed = b"".join(splitter.feed(piece) for _ in range(40)) + splitter.finish()
    assert printed.count(b"\n") == 2
    assert printed.replace(b"\n", b"") == piece * 40


# ---------------------------------------------------------------- hosts


def test_host_lists() -> None:
    assert parse_hosts("a:2, b ,[::1]:3,a:1") == [Host("a", 3), Host("b", 1), Host("::1", 3)]


@pytest.mark.parametrize("text", ["", ",", "a:", "a:0", "a:-1", "a:1.5", "a b", "::1", "[::1"])
def test_bad_host_lists(text: str) -> None:
    with pytest.raises(HostsError):
        parse_hosts(text)


def test_host_files(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(
        "# all\n\na slots=2 # first\nb max_slots = 4\nc:3\n[::1] slots=1\nd\n"
        "e:2222 slots=2\n[fd00::1]:22 slots=3\nfd00::2 slots=4\nme@f slots=1\n"
        "g slots=5 max_slots=9\n"
    )
    assert parse_hostfile(str(file)) == [
        Host("a", 2), Host("b", 4), Host("c", 3), Host("::1", 1), Host("d", 1),
        Host("e", 2, 2222), Host("fd00::1", 3, 22), Host("fd00::2", 4), Host("me@f", 1),
        Host("g", 5),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("b slots=many", "host 'b': slots must be a positive number"),
        ("b:ssh slots=1", "host 'b': 'ssh' is not a port"),
        ("b:0 slots=1", "host 'b': '0' is not a port"),
        ("b:65536 slots=1", "host 'b': '65536' is not a port"),
        ("[b slots=1", "'[b' is not host or host:port"),
        ("-l slots=1", "'-l' is not the name of a host"),
    ],
)
def test_a_bad_line_of_a_host_file_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"a slots=2\n{line}\n")
    with pytest.raises(HostsError, match=re.escape(f"hosts:2: {message}")):
        parse_hostfile(str(file))


def test_a_host_with_two_ports_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a:22 slots=2\na:23 slots=2\n")
    with pytest.raises(HostsError, match="host 'a' has two different ports"):
        parse_hostfile(str(file))


def test_ranks_of_a_host_are_consecutive() -> None:
    places = place_ranks([Host("a", 3), Host("b", 1), Host("c", 4)], 6)
    assert places == [
        Place(0, 6, 0, 3, 0, 3, "a"),
        Place(1, 6, 1, 3, 0, 2, "a"),
        Place(2, 6, 2, 3, 0, 1, "a"),
        Place(3, 6, 0, 1, 1, 3, "b"),
        Place(4, 6, 0, 2, 2, 3, "c"),
        Place(5, 6, 1, 2, 1, 2, "c"),
    ]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_places_are_consistent(slots: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, sum(slots)))
    places = place_ranks([Host(f"h{i}", count) for i, count in enumerate(slots)], size)
    assert [place.rank for place in places] == list(range(size))
    for place in places:
        local = [p for p in places if p.hostname == place.hostname]
        cross = [p for p in places if p.local_rank == place.local_rank]
        assert (place.local_size, place.cross_size) == (len(local), len(cross))
        assert local[place.local_rank] is place
        assert cross[place.cross_rank] is place


def test_which_hosts_are_this_machine() -> None:
    for name in ("localhost", "127.0.0.1", "127.1.2.3", os.uname().nodename):
        assert is_local(name), name
    for name in ("198.51.100.1", "2001:db8::1", "node.invalid", "a" * 70, ".."):
        assert not is_local(name), name


# ---------------------------------------------------------------- routes to the hosts


def test_names_of_this_machine_are_one_host_and_others_are_reached_by_ssh() -> None:
    given = [
        Host("198.51.100.1", 1),
        Host("localhost", 2),
        Host("198.51.100.2", 1, 99),
        Host("::1", 3),
    ]
    machines = resolve_hosts(given, RemoteShell(ssh_port=22, identity_file="key"))
    assert machines.remote
    assert machines.hosts == [
        Host("198.51.100.1", 1),
        Host("localhost", 5),
        Host("198.51.100.2", 1, 99),
    ]
    supervisor = machines.commands["localhost"]
    ssh = machines.commands["198.51.100.1"]
    assert ssh[0] == "ssh"
    assert ssh[-len(supervisor) - 5 :] == ["-i", "key", "-p", "22", "198.51.100.1", *supervisor]
    assert machines.commands["198.51.100.2"][-len(supervisor) - 2] == "99"
    assert not resolve_hosts([Host("localhost", 2)], RemoteShell()).remote


def test_a_remote_shell_of_the_users_reaches_all_hosts() -> None:
    machines = resolve_hosts([Host("localhost", 2)], RemoteShell(command="ip netns 'e x'"))
    assert machines.remote
    assert machines.commands["localhost"][:4] == ["ip", "netns", "e x", "localhost"]


@given(st.integers(0, 3000))
def test_hosts_are_divided_evenly(count: int) -> None:
    specs = [HostSpec(index, f"h{index}", ()) for index in range(count)]
    parts = divided(specs, FANOUT)
    assert [host for part in parts for host in part] == specs
    assert len(parts) == min(count, FANOUT)
    lengths = {len(part) for part in parts}
    assert not lengths or max(lengths) - min(lengths) <= 1


def test_own_addresses() -> None:
    addresses = own_addresses()
    assert LOOPBACK in addresses
    assert all(is_local(address) for address in addresses)
    assert own_addresses(["lo"])[0] == LOOPBACK
    assert own_addresses(["no_such_interface"]) == addresses


def test_a_probe_finds_the_beacon_and_nothing_else() -> None:
    selector = selectors.DefaultSelector()
    beacon = Beacon(selector)
    other = Beacon(selector)  # also answers, with a different token
    found: list[tuple[str, str]] = []
    probes = [
        Probe(selector, [LOOPBACK, "::1", "198.51.100.1"], beacon.port, beacon.token,
              lambda address: found.append(("beacon", address))),
        Probe(selector, [LOOPBACK], other.port, beacon.token,
              lambda address: found.append(("other", address))),
    ]  # fmt: skip
    deadline = time.monotonic() + 30
    while len(found) < 1 + Path("/proc/net/if_inet6").exists():
        assert time.monotonic() < deadline
        for key, _ in selector.select(1):
            key.data()
    for one in (*probes, beacon, other):
        one.close()
    assert ("beacon", LOOPBACK) in found
    assert {origin for origin, _ in found} == {"beacon"}
    assert not selector.get_map()


def test_exports() -> None:
    assert exported(["A", "B=", "C=x=y"], {"A": "1", "B": "2"}) == {"A": "1", "B": "", "C": "x=y"}
    for flag in ("", "=", "A B=1", "1A=1", "NOT_SET"):
        with pytest.raises(ExportError):
            exported([flag], {})


# ---------------------------------------------------------------- the rest


def test_cores_are_bounded_by_the_quota_of_the_container(tmp_path: Path) -> None:
    everything = len(os.sched_getaffinity(0))
    assert available_cores(tmp_path) == everything
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert available_cores(tmp_path) == everything
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert available_cores(tmp_path) == 1
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert available_cores(tmp_path) == 1
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert available_cores(tmp_path) == everything


def test_the_report_prefers_the_cause() -> None:
    consequence = Exit(0, "a", 1), [b"horoscale._core.errors.RankFailedError: rank 2 failed\n"]
    cause = Exit(2, "b", -11), [b"about to crash\n"]
    first, text = failure_report([consequence, cause], {})
    assert first is cause[0]
    assert first.shell_status == 139
    assert text.decode().splitlines() == [
        "horoscalerun: failed as well: rank 0 exit status 1",
        "horoscalerun: rank 2 on b failed first: ended by SIGSEGV; its last lines on stderr:",
        "    about to crash",
    ]


def test_the_report_begins_with_a_rank_that_left_while_others_needed_it() -> None:
    text = b'horoscale._core.errors.RankFailedError: rank 3 left the job; so "x" is not done\n'
    failures = [(Exit(rank, "a", 1), [text]) for rank in (1, 0, 2)]
    first, report = failure_report(failures, {3: Exit(3, "b", 0)})
    assert first.rank == 1
    assert report.decode().splitlines() == [
        "horoscalerun: rank 3 on b ended first: with exit status 0, while other ranks needed it "
        "(a rank that has less to do calls join())",
        "horoscalerun: failed because of that: ranks 0-2 exit status 1; rank 1's last lines on "
        "stderr:",
        "    " + text.decode().strip(),
    ]
    # A rank that fails by itself is the cause, even if others left.
    cause = Exit(4, "b", 3), [b"no luck\n"]
    first, report = failure_report([*failures, cause], {3: Exit(3, "b", 0)})
    assert first is cause[0]
    assert b"rank 4 on b failed first: exit status 3" in report
    assert b"failed as well: ranks 0-2 exit status 1" in report
    assert b"ended" not in report


@pytest.mark.parametrize(
    ("text", "blamed"),
    [
        ("RankFailedError: rank 4 failed: its link was closed unexpectedly", "rank 4 on b"),
        ("HorovodInternalError: rank 4 of 9 did not call init() in time", "rank 4 on b"),
        ("HorovodInternalError: the first to fail was rank 0: rank 4 was missing", "rank 4 on b"),
        ("HorovodInternalError: ranks 3-5, 7 and 8 of 9 did not call init()", "ranks 4-5,8"),
        (f"HorovodInternalError: ranks 5-{'9' * 99} did not call init()", "ranks 5,8"),
        ("AbortedError: training step: rank 4 left the job; so it is not done", "rank 4 on b"),
        ("RankFailedError: x waits for rank 5; ready: ranks 4 and 8", "rank 5 on b"),
        ("RankFailedError: rank 3 failed: its process ended", None),
        ("ValueError: no file for rank 4", None),
        ("retry: HorovodInternalError: rank 4 failed: gone\nValueError: a bug", None),
        ("RankFailedError: x waits for rank 6", None),  # it ended because it was told to
        ("RankFailedError: rank 6 left the job; so x is not done", "rank 6 on b"),
        ("RuntimeError: training failed", None),
    ],
)
def test_the_report_blames_a_rank_that_ended_well_if_the_others_do(
    text: str, blamed: str | None
) -> None:
    ended_well = {rank: Exit(rank, "b", 0) for rank in (4, 5, 6, 8)}
    lines = [b"Traceback (most recent call last):\n"]
    lines += f"horoscale.{text}\n".encode().splitlines(keepends=True)
    first, report = failure_report([(Exit(0, "a", 1), lines)], ended_well, [8, 4, 5])
    assert first.rank == 0
    _, of_a_crash = failure_report([(Exit(0, "a", -11), lines)], ended_well)
    assert of_a_crash.startswith(b"horoscalerun: rank 0 on a failed first: ended by SIGSEGV")
    begin = report.decode().splitlines()[0]
    if blamed is None:
        assert begin == "horoscalerun: ended with exit status 0: ranks 4-5,8"
    else:
        assert begin.startswith(f"horoscalerun: {blamed} ended first: with exit status 0, while ")


# ---------------------------------------------------------------- mpirun


def test_what_looks_like_a_credential_is_no_argument_of_mpirun() -> None:
    """Hydra gets a list where it would pass everything; once is enough."""
    environment = dict.fromkeys(
        ("HOME", "PATH", "HOROSCALE_API_KEY", "HOROVOD_X", "MY_TOKEN", "SOME_PASSWORD", "A,B"), ""
    )
    environment[mpirun.TASK_SECRET] = ""  # without it no rank receives its task
    hosts = [Host("a", 2), Host("b", 2)]

    def words(is_open_mpi: bool, hosts: list[Host], mpi_args: str = "") -> str:
        program = mpirun.Mpirun("mpirun", is_open_mpi)
        return " ".join(
            mpirun.command_line(
                program, 4, hosts, environment, ["x"], exports=["MY_TOKEN"], mpi_args=mpi_args
            )
        )

    start = "mpirun -np 4 --bind-to none"
    task = "HOROSCALE_TASK_SECRET"
    assert words(True, hosts) == (
        f"{start} --oversubscribe -H a:2,b:2 -x {task} -x HOROVOD_X -x MY_TOKEN -x PATH x"
    )
    assert words(True, []) == f"{start} --oversubscribe x"
    passed = f"-genvlist HOME,{task},HOROVOD_X,MY_TOKEN,PATH"
    assert words(False, hosts) == f"{start} -hosts a:2,b:2 {passed} x"
    assert words(False, []) == f"{start} {passed} x"
    assert words(False, [], "-genvall") == f"{start} -genvall x"
    assert words(False, [], "--genvlist=A") == f"{start} --genvlist=A x"
    assert mpirun.withheld(mpirun.Mpirun("mpirun", False), environment, ["MY_TOKEN"]) == [
        "HOROSCALE_API_KEY",
        "SOME_PASSWORD",
    ]
    del environment["HOROSCALE_API_KEY"], environment["SOME_PASSWORD"]
    assert words(False, hosts) == f"{start} -hosts a:2,b:2 x"


def test_ranks_of_mpirun_get_nothing_of_a_job_that_is_watched() -> None:
    inherited = {"HOROSCALE_STATUS_TOKEN": "secret", "HOROSCALE_STATUS_LINK": "5:7", "HOME": "/"}
    environment = mpirun.job_environment(mpirun.Mpirun("/mpirun", False), inherited, {})
    assert environment["HOME"] == "/"
    assert not [name for name in environment if "STATUS" in name]


def test_results_on_a_full_disk_are_one_error(capfd: pytest.CaptureFixture[str]) -> None:
    writer = results.ResultWriter(os.open("/dev/full", os.O_WRONLY))
    for _ in range(2):  # ranks deliver pieces
        with pytest.raises(results.ResultsError, match="No space left on device; set TMPDIR"):
            writer.add(0, b"piece")
    writer.finish(b"why")
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("horoscalerun: cannot write the ranks' results")


@pytest.mark.parametrize("frees", [False, True])
def test_where_results_can_not_be_kept_the_report_is(frees: bool, tmp_path: Path) -> None:
    """Even if others free the disk, and more is delivered."""
    path = tmp_path / "results"
    writer = results.ResultWriter(os.open(path, os.O_WRONLY | os.O_CREAT))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        writer.add(0, b"first")
        with pytest.raises(results.ResultsError):
            writer.add(1, bytes(2000))
        if frees:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            writer.add(0, b"last")
        writer.finish(b"why")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    with path.open("rb") as file:
        assert results.read_results(file) == ({}, "why")


def test_held_results_are_bounded_and_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MAX_RESULTS_BYTES", 100)
    held = results.HeldResults()
    held.add(1, b"a" * 40)
    held.add(2, b"b" * 30)
    held.add(1, b"c" * 30)
    with pytest.raises(results.ResultsTooLargeError):
        held.add(3, b"d")
    assert b"".join(held.take(1)) == b"a" * 40 + b"c" * 30
    assert list(held.take(1)) == []
    held.drop(2)
    held.add(3, b"d" * 70)  # consuming makes room
    assert list(held.take(3)) == [b"d" * 70]
