"""horoscale.run(): a function on many ranks."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from launcher_process import PATIENCE_S, environment

import horoscale
from horoscale.runner.api import RankError
from horoscale.runner.bootstrap import python_command
from horoscale.runner.results import read_results
from horoscale.runner.task import Task


def rank() -> int:
    return int(os.environ["HOROSCALE_RANK"])


def test_results_come_by_rank() -> None:
    def describe(text: str, *, times: int) -> tuple[int, str]:
        return int(os.environ["HOROSCALE_RANK"]), text * times

    assert horoscale.run(describe, ("ab",), {"times": 2}, np=3) == [
        (0, "abab"),
        (1, "abab"),
        (2, "abab"),
    ]


def test_lambdas_and_functions_of_modules() -> None:
    offset = 10
    assert horoscale.run(lambda: offset + int(os.environ["HOROSCALE_RANK"]), np=2) == [10, 11]
    assert horoscale.run(rank, np=2) == [0, 1]
    assert horoscale.run(os.getcwd) == [os.getcwd()]


def test_large_arguments_and_results() -> None:
    megabytes = b"x" * (20 << 20)
    results = horoscale.run(
        lambda data: data + os.environ["HOROSCALE_RANK"].encode(), (megabytes,), np=2
    )
    assert results == [megabytes + b"0", megabytes + b"1"]


# The launcher, with a limit that tests can reach.
SMALL_LIMIT = """
import sys
from horoscale.runner import launch, results
results.MAX_RESULTS_BYTES = 3 << 20
sys.exit(launch.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("megabytes", "fits"), [(1, True), (2, False)])
def test_results_have_a_limit(megabytes: int, fits: bool) -> None:
    task = Task(lambda: b"x" * (megabytes << 20), (), {}).pickled()
    with tempfile.TemporaryFile() as task_file, tempfile.TemporaryFile() as result_file:
        task_file.write(task)
        task_file.flush()
        descriptors = (task_file.fileno(), result_file.fileno())
        flags = (f"--task={descriptors[0]}", f"--results={descriptors[1]}", "-np", "2")
        status = subprocess.run(
            [sys.executable, "-c", SMALL_LIMIT, *flags, *python_command("horoscale.runner.task")],
            pass_fds=descriptors,
            env=environment(),
            timeout=PATIENCE_S,
            check=False,
        ).returncode
        outcomes, report = read_results(result_file)
        size = os.fstat(result_file.fileno()).st_size
    assert (status == 0, len(outcomes) == 2) == (fits, fits)
    assert size < (4 << 20)
    expected = "" if fits else "horoscalerun: the ranks' results exceed 0.00292969 GiB: "
    assert report.startswith(expected)
    assert bool(report) != fits


def test_an_exception_is_raised_again_with_rank_and_traceback() -> None:
    def fail_on_rank_1() -> None:
        if os.environ["HOROSCALE_RANK"] == "1":
            raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there") as error:
        horoscale.run(fail_on_rank_1, np=2)
    cause = error.value.__cause__
    assert isinstance(cause, RankError)
    assert cause.rank == 1
    assert "in fail_on_rank_1" in cause.traceback
    assert str(cause).startswith("rank 1:\nTraceback")


@pytest.mark.parametrize("full", [False, True])
def test_our_own_frames_are_in_the_ranks_traceback_on_demand(full: bool) -> None:
    def not_initialized() -> None:
        import horoscale.numpy as hvd

        hvd.rank()

    with pytest.raises(ValueError, match="init") as error:
        horoscale.run(
            not_initialized, env=environment({"HOROSCALE_FULL_TRACEBACK": str(int(full))})
        )
    text = str(error.value.__cause__)
    assert "in not_initialized" in text
    for file in ("runner/task.py", "common/"):
        assert (file in text) == full
    assert ("HOROSCALE_FULL_TRACEBACK=1 shows them" in text) != full


def test_an_exception_that_can_not_be_pickled_is_told_as_text() -> None:
    def fail() -> None:
        class Odd(Exception):  # noqa: N818
            def __init__(self, one: int, two: int) -> None:
                super().__init__("odd")

        raise Odd(1, 2)

    with pytest.raises(RuntimeError, match="Odd: odd"):
        horoscale.run(fail)


def test_a_result_that_can_not_be_pickled_is_an_error() -> None:
    with pytest.raises(TypeError, match="lock"):
        horoscale.run(threading.Lock)


def test_the_cause_is_raised_and_not_its_consequence() -> None:
    def fail() -> None:
        class RankFailedError(RuntimeError):
            pass

        raise RankFailedError if os.environ["HOROSCALE_RANK"] == "0" else OSError("the cause")

    with pytest.raises(OSError, match="the cause"):
        horoscale.run(fail, np=3)


def test_a_rank_that_dies_is_named() -> None:
    def die() -> None:
        if os.environ["HOROSCALE_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    with pytest.raises(RuntimeError, match=r"rank 1 on .* failed first: ended by SIGKILL"):
        horoscale.run(die, np=2)


def test_a_rank_that_exits_without_a_result_is_named() -> None:
    with pytest.raises(RuntimeError, match="without a result: 0, 1"):
        horoscale.run(lambda: os._exit(0), np=2)


def test_parameters_that_can_not_be() -> None:
    with pytest.raises(ValueError, match=r"-np: expected a positive number, not '0'"):
        horoscale.run(rank, np=0)
    with pytest.raises(RuntimeError, match=r"no rank was started, because of a host:\n.*invalid:"):
        horoscale.run(rank, np=2, hosts="node.invalid:2")
    with pytest.raises(ValueError, match=r"--output-filename and --mpi cannot be combined"):
        horoscale.run(rank, np=2, use_mpi=True, output_filename="logs")
    with pytest.raises(ValueError, match=r"there is no option --no-such-flag"):
        horoscale.run(rank, np=2, options=["--no-such-flag"])


def test_switches_take_any_true_value() -> None:
    assert horoscale.run(rank, np=2, verbose=2, disable_cache=1, use_gloo=1, use_mpi=0) == [0, 1]


def test_parameters_become_flags(tmp_path: Path) -> None:
    def variables() -> tuple[str, ...]:
        names = ("HOROSCALE_START_TIMEOUT", "HOROSCALE_CACHE_CAPACITY", "HOROSCALE_TIMELINE", "OWN")
        return tuple(os.environ[name] for name in names)

    results = horoscale.run(
        variables,
        np=2,
        start_timeout=20,
        disable_cache=True,
        output_filename=str(tmp_path / "logs"),
        use_gloo=True,
        env=environment({"OWN": "value"}),
        options=["--timeline-filename", "t.json"],
    )
    assert results == [("20", "0", "t.json", "value")] * 2
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["rank.0", "rank.1"]


def test_output_goes_to_the_streams_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    def talk() -> None:
        print("to stdout, ü")
        print("to stderr", file=sys.stderr)

    horoscale.run(talk, np=1)
    out, err = capsys.readouterr()
    assert out == "[0]<stdout>:to stdout, ü\n"
    assert err == "[0]<stderr>:to stderr\n"


def script(text: str, folder: Path, cwd: Path | None = None) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(text)
    return subprocess.Popen(
        [sys.executable, str(folder / "script.py")],
        cwd=cwd,
        env=environment({"TMPDIR": str(folder)}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


WAITING = """
import horoscale, os, signal
def wait():
    print(os.getpid())
    signal.pause()
if __name__ == "__main__":
    try:
        horoscale.run(wait, np=2)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_caller_that_is_ended_takes_the_job_with_it(
    tmp_path: Path, signum: signal.Signals
) -> None:
    caller = script(WAITING, tmp_path)
    assert caller.stdout is not None
    ranks = [int(caller.stdout.readline().rsplit(":", 1)[1]) for _ in range(2)]
    watched = [os.pidfd_open(pid) for pid in ranks]
    caller.send_signal(signum)
    out, _ = caller.communicate(timeout=PATIENCE_S)
    if signum == signal.SIGINT:
        assert out.endswith("interrupted\n")
    for pidfd in watched:
        wait_for_end(pidfd)
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def wait_for_end(pidfd: int) -> None:
    ready, _, _ = select.select([pidfd], [], [], PATIENCE_S)
    os.close(pidfd)
    assert ready, "a rank outlived its caller"


FROM_ELSEWHERE = """
import horoscale, sys
def look():
    import helper
    return sys.path, helper.VALUE
if __name__ == "__main__":
    sys.path.append("/for/the/task")
    assert horoscale.run(look, np=2) == [(sys.path, 7)] * 2
"""


def test_nothing_is_imported_from_the_working_directory(tmp_path: Path) -> None:
    """Neither by the launcher nor by the ranks before the function call: it has its own path."""
    (tmp_path / "here").mkdir()
    for module in (*sys.stdlib_module_names, "cloudpickle", "numpy", "yaml", "cffi", "horoscale"):
        marker = tmp_path / f"{module} was imported"
        (tmp_path / "here" / f"{module}.py").write_text(f"open({str(marker)!r}, 'w')\n")
    (tmp_path / "helper.py").write_text("VALUE = 7\n")
    caller = script(FROM_ELSEWHERE, tmp_path, tmp_path / "here")
    _, err = caller.communicate(timeout=PATIENCE_S)
    assert caller.returncode == 0, err
    assert sorted(path.name for path in tmp_path.glob("*imported")) == []


def test_from_a_thread() -> None:
    results: list[list[int]] = []
    thread = threading.Thread(target=lambda: results.append(horoscale.run(rank, np=2)))
    thread.start()
    thread.join(PATIENCE_S)
    assert results == [[0, 1]]
