"""Starts supervisors on other hosts.

Uses ssh, the remote shell that the user names, or the batch system of this job.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from horoscale.engines.batch import Allocation
from horoscale.runner.bootstrap import isolated_command
from horoscale.runner.hosts import Host, HostsError, is_local

SUPERVISOR = "horoscale.runner.supervisor"
_RESOLVERS = 32  # parallel name lookups

# ssh never prompts for a password or about an unknown host, because nobody could answer. It detects
# a lost host within half a minute.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")


@dataclass(frozen=True)
class RemoteShell:
    """The user's options for access to other hosts."""

    command: str | None = None  # instead of ssh: COMMAND host program arguments
    ssh_port: int | None = None
    identity_file: str | None = None
    allocation: Allocation | None = None  # its nodes are reached through the batch system


@dataclass(frozen=True)
class Machines:
    """The hosts of a job, each once."""

    hosts: Sequence[Host]
    commands: dict[str, list[str]]  # commands that start supervisors, by host name
    remote: bool  # whether any of them is another machine


def resolve_hosts(given: Sequence[Host], shell: RemoteShell) -> Machines:
    """Return the machines for the user's hosts.

    Names of this machine are merged into one host, whose supervisor needs no remote shell. A shell
    that the user names is used for all hosts.

    Raises HostsError if options contradict each other.
    """
    if shell.command is not None:
        words = _shell_words(given, shell)
        return Machines(given, {host.name: _remote(words, host) for host in given}, True)
    if shell.allocation is not None and all(
        _in_allocation(shell.allocation, host.name) for host in given
    ):
        commands = {host.name: _by_batch_system(shell.allocation, host.name) for host in given}
        return Machines(given, commands, any(host.name != shell.allocation.own for host in given))
    with ThreadPoolExecutor(_RESOLVERS) as pool:
        local = dict(zip(given, pool.map(lambda host: is_local(host.name), given), strict=True))
    commands = {
        host.name: isolated_command(SUPERVISOR) if here else _remote(_ssh_words(host, shell), host)
        for host, here in local.items()
    }
    return Machines(_merge_local(local), commands, not all(local.values()))


def supervisor_command(name: str, shell: RemoteShell) -> list[str]:
    """Return the command that starts the supervisor of an elastic job's host.

    Names are not merged. May block while the name is looked up.
    """
    host = Host(name, 1)
    if shell.command is not None:
        return _remote(_shell_words([host], shell), host)
    if shell.allocation is not None and _in_allocation(shell.allocation, name):
        return _by_batch_system(shell.allocation, name)
    if is_local(name):
        return isolated_command(SUPERVISOR)
    return _remote(_ssh_words(host, shell), host)


def _remote(shell: Sequence[str], host: Host) -> list[str]:
    # ssh and similar shells join the words, and the remote shell parses them again.
    return [*shell, host.name, *map(shlex.quote, isolated_command(SUPERVISOR))]


def _in_allocation(allocation: Allocation, name: str) -> bool:
    return allocation.shell is not None and name in allocation.slots


def _by_batch_system(allocation: Allocation, name: str) -> list[str]:
    assert allocation.shell is not None
    program = isolated_command(SUPERVISOR)  # no shell parses the words again
    return program if name == allocation.own else [*allocation.shell, name, *program]


def _ssh_words(host: Host, shell: RemoteShell) -> list[str]:
    words = list(_SSH)
    if shell.identity_file is not None:
        words += ["-i", shell.identity_file]
    port = host.ssh_port or shell.ssh_port
    if port is not None:
        words += ["-p", str(port)]
    return words


def _shell_words(given: Sequence[Host], shell: RemoteShell) -> list[str]:
    assert shell.command is not None
    try:
        words = shlex.split(shell.command)
    except ValueError as error:
        raise HostsError(f"--remote-shell {shell.command!r}: {error}") from None
    if not words:
        raise HostsError("--remote-shell: expected a command such as 'ssh -q'")
    ports = [shell.ssh_port, *(host.ssh_port for host in given)]
    if shell.identity_file is not None or any(port is not None for port in ports):
        raise HostsError(
            "ports and identity files apply to ssh: with --remote-shell, put them into its command"
        )
    return words


def _merge_local(local: dict[Host, bool]) -> list[Host]:
    """Merge all names of this machine into one host, at the position of the first."""
    own = [host for host, here in local.items() if here]
    slots = sum(host.slots for host in own)
    return [
        Host(host.name, slots) if here else host
        for host, here in local.items()
        if not here or host is own[0]
    ]
