"""Runs a function as the ranks of a job on the agents' hosts: horoscale.run() over their shell."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import horoscale
from horoscale.engines.agents.driver import Agents
from horoscale.runner import mpirun


@dataclass(frozen=True)
class Call:
    """The function that the ranks call, and the settings that all engines share."""

    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)  # for the ranks, besides the driver's
    executable: str | None = None  # the ranks' interpreter
    stdout: TextIO | None = None  # for the ranks' output; None: the driver's own
    stderr: TextIO | None = None
    nics: Sequence[str] = ()  # network interfaces that hosts can reach; empty: all
    options: Sequence[str] = ()  # further options of horoscalerun


def run(agents: Agents, size: int, call: Call) -> list[Any]:
    """Run `size` ranks on the agents' hosts. Returns and raises as horoscale.run() does."""
    return _run(call, ["--remote-shell", agents.shell], np=size, hosts=_hosts(agents))


def run_elastic(agents: Agents, call: Call, **parameters: Any) -> list[Any]:
    """Run an elastic job, which follows the agents. Takes horoscale.run()'s parameters."""
    return _run(
        call,
        ["--remote-shell", agents.shell],
        host_discovery_script=agents.discovery,
        **parameters,
    )


def run_mpi(agents: Agents, size: int, call: Call, mpi_args: str) -> list[Any]:
    """Run by mpirun, which starts its own daemons on the hosts through the agents."""
    program = mpirun.find(os.environ.get("PATH"))
    agent = ["-launcher", "rsh", "-launcher-exec", agents.shell_file()]
    if program.is_open_mpi:
        agent = ["--mca", "plm_rsh_agent", agents.shell_file()]
    return _run(
        call,
        [],
        np=size,
        hosts=_hosts(agents),
        use_mpi=True,
        mpi_args=" ".join([*agent, mpi_args]).strip(),
    )


def _hosts(agents: Agents) -> str:
    return ",".join(f"{name}:{slots}" for name, slots in agents.hosts())


def _run(call: Call, options: Sequence[str], **parameters: Any) -> list[Any]:
    own = [word for name in call.env for word in ("-x", name)]
    if call.nics:
        own += ["--network-interface", ",".join(call.nics)]
    with _streams(call.stdout, call.stderr):
        return horoscale.run(
            call.function,
            call.args,
            call.kwargs,
            env={**os.environ, **call.env},
            executable=call.executable,
            options=[*own, *options, *call.options],
            **parameters,
        )


@contextlib.contextmanager
def _streams(stdout: TextIO | None, stderr: TextIO | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if stdout is not None:
            stack.enter_context(contextlib.redirect_stdout(stdout))
        if stderr is not None:
            stack.enter_context(contextlib.redirect_stderr(stderr))
        yield
