"""horoscale.run(): runs a function on many ranks, from a script or a notebook."""

from __future__ import annotations

import codecs
import os
import pickle
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, TextIO

from horoscale.runner.bootstrap import python_command
from horoscale.runner.notebook import NotebookOutput, display_of_cell
from horoscale.runner.outcome import Outcome, RankError, raise_first
from horoscale.runner.results import read_results
from horoscale.runner.task import Task
from horoscale.runner.watching import TOKEN_VARIABLE

__all__ = ["RankError", "run"]

_READ_BYTES = 1 << 16
_USAGE_ERROR = 2


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    min_np: int | None = None,
    max_np: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interfaces: str | Iterable[str] | None = None,
    executable: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    host_discovery_script: str | None = None,
    elastic_timeout: float | None = None,
    cooldown_range: tuple[float, float] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: str | int | None = None,
    resume: str | os.PathLike[str] | None = None,
) -> list[Any]:
    """Call `func(*args, **kwargs)` on `np` ranks and return the results by rank.

    With `min_num_proc`, `max_num_proc` or `host_discovery_script` the job is elastic. The results
    are then those of the ranks at the end of the job. `np`, `min_np` and `max_np` are aliases of
    `num_proc`, `min_num_proc` and `max_num_proc`.

    The function may be a lambda or be defined in a notebook. It must call `hvd.init()` itself. The
    ranks' output appears here. In a notebook it is folded by rank, below the job's progress. The
    parameters correspond to the flags of horoscalerun with the same names. `options` takes any
    other flags, `env` replaces the environment, and `executable` the Python interpreter.

    Raises:
        The exception of the first rank that raised, caused by a RankError with rank and traceback.
        RuntimeError: a rank ended without raising, for example because of a signal.
        ValueError: the parameters are invalid, or need a feature that is not available yet.
    """
    np = np if num_proc is None else num_proc
    elastic = {
        "--min-np": min_np if min_num_proc is None else min_num_proc,
        "--max-np": max_np if max_num_proc is None else max_num_proc,
        "--slots-per-host": slots,
        "--host-discovery-script": host_discovery_script,
        "--elastic-timeout": elastic_timeout,
        "--reset-limit": reset_limit,
    }
    flags = _flags(
        {
            "--num-proc": np,
            **elastic,
            "--hosts": hosts,
            "--hostfile": hostfile,
            "--start-timeout": start_timeout,
            "--ssh-port": ssh_port,
            "--ssh-identity-file": ssh_identity_file,
            "--checkpoint-dir": None if checkpoint_dir is None else os.fspath(checkpoint_dir),
            "--checkpoint-every": checkpoint_every,
            "--resume": None if resume is None else os.fspath(resume),
            "--disable-cache": bool(disable_cache) or None,
            "--output-filename": output_filename,
            "--verbose": bool(verbose) or None,
            "--gloo": bool(use_gloo) or None,
            "--mpi": bool(use_mpi) or None,
            "--mpi-args": mpi_args,
            "--network-interface": (
                network_interfaces
                if network_interfaces is None or isinstance(network_interfaces, str)
                else ",".join(network_interfaces)
            ),
        }
    )
    if cooldown_range is not None:
        low, high = cooldown_range
        flags += ["--blacklist-cooldown-range", str(low), str(high)]
    is_elastic = cooldown_range is not None or any(one is not None for one in elastic.values())
    task = Task(func, args, kwargs or {}).pickled()
    command = python_command("horoscale.runner.task")
    command[0] = executable or command[0]
    with tempfile.TemporaryFile() as task_file, tempfile.TemporaryFile() as result_file:
        task_file.write(task)
        task_file.flush()
        handover = {
            "--parent": os.getpid(),
            "--task": task_file.fileno(),
            "--results": result_file.fileno(),
        }
        arguments = [*flags, *options, *_flags(handover), *command]
        descriptors = (task_file.fileno(), result_file.fileno())
        # mpirun does not say which rank prints what.
        display = None if "--mpi" in arguments else display_of_cell()
        cell = None if display is None else NotebookOutput(display, np)
        if cell is not None and not any(one.startswith("--status-port") for one in options):
            env = {**(os.environ if env is None else env), TOKEN_VARIABLE: cell.token}
            arguments.insert(0, "--status-port=0")
        status = _launch(arguments, descriptors, env, cell)
        outcomes, report = read_results(result_file)
    if is_elastic:
        if status == 0:  # the job has recovered from failures of other ranks
            outcomes = {rank: one for rank, one in outcomes.items() if not one.failed}
        np = max(outcomes, default=-1) + 1
    return _values(np, status, outcomes, report)


def _flags(values: Mapping[str, Any]) -> list[str]:
    flags = []
    for flag, value in values.items():
        if value is True:
            flags.append(flag)
        elif value is not None:
            flags.append(f"{flag}={value}")
    return flags


def _launch(
    arguments: Sequence[str],
    descriptors: Sequence[int],
    env: Mapping[str, str] | None,
    cell: NotebookOutput | None,
) -> int:
    """Run the launcher and show its output; return its exit status.

    It runs in a separate process, because a launcher takes over signals and the orphans of its
    process.
    """
    launcher = subprocess.Popen(
        python_command("horoscale.runner.launch", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=descriptors,
        start_new_session=True,  # interrupts come from here, not also from the terminal
        env=env,
    )
    interrupt: KeyboardInterrupt | None = None
    try:
        with _Relay(launcher, cell) as relay:
            while True:
                try:
                    relay.run()
                    launcher.wait()
                    break
                except KeyboardInterrupt as error:
                    interrupt = error
                    launcher.send_signal(2)
    finally:
        if launcher.poll() is None:
            launcher.terminate()
            launcher.wait()
        if cell is not None:
            cell.finish(launcher.returncode)
    if interrupt is not None:
        raise interrupt
    return launcher.returncode


class _Relay:
    """Copies the launcher's output to sys.stdout and sys.stderr, or to a notebook cell."""

    def __init__(self, launcher: subprocess.Popen[bytes], cell: NotebookOutput | None) -> None:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        self._pipes: list[IO[bytes]] = [launcher.stdout, launcher.stderr]
        self._selector = selectors.DefaultSelector()
        self._cell = cell
        for pipe, name in zip(self._pipes, ("stdout", "stderr"), strict=True):
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            self._selector.register(pipe, selectors.EVENT_READ, (decoder, name))

    def run(self) -> None:
        """Block until the launcher has closed both. May be interrupted and called again."""
        while self._selector.get_map():
            for key, _ in self._selector.select(None if self._cell is None else self._cell.timeout):
                decoder, name = key.data
                data = os.read(key.fd, _READ_BYTES)
                text = decoder.decode(data, final=not data)
                if self._cell is None:
                    _write(getattr(sys, name), text)
                else:
                    self._cell.feed(name, text)
                if not data:
                    self._selector.unregister(key.fileobj)
            if self._cell is not None:
                self._cell.update()

    def __enter__(self) -> _Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()


def _write(target: TextIO, text: str) -> None:
    if text:
        encoding = getattr(target, "encoding", None) or "utf-8"
        target.write(text.encode(encoding, "replace").decode(encoding))
        target.flush()


def _values(size: int, status: int, outcomes: Mapping[int, Outcome], report: str) -> list[Any]:
    failures = [(rank, outcome) for rank, outcome in outcomes.items() if outcome.failed]
    if failures:
        raise_first(failures)
    if status == _USAGE_ERROR and not outcomes:
        raise ValueError(report or "horoscalerun rejected these parameters: see its output")
    missing = [rank for rank in range(size) if rank not in outcomes]
    if status != 0 or missing:
        names = ", ".join(map(str, missing))
        ending = report or f"these ranks ended without a result: {names}"
        raise RuntimeError(f"horoscale.run: {ending}")
    return [pickle.loads(outcomes[rank].pickled or b"") for rank in range(size)]
