"""The flags of horoscalerun for elastic jobs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from horoscale.runner import control, usage
from horoscale.runner.environment import read_by_ranks
from horoscale.runner.hosts import Host
from horoscale.runner.status import show_status

if TYPE_CHECKING:  # not imported for other jobs
    from horoscale.driver import BanPolicy, Rules

UNLIMITED = 1 << 20
_MAX_PID = 1 << 22  # Linux's maximum

# Attribute and name of the flags that make a job elastic.
_ELASTIC = (
    ("min_num_proc", "--min-np"),
    ("max_num_proc", "--max-np"),
    ("host_discovery_script", "--host-discovery-script"),
    ("slots_per_host", "--slots-per-host"),
    ("elastic_timeout", "--elastic-timeout"),
    ("reset_limit", "--reset-limit"),
    ("blacklist_cooldown_range", "--blacklist-cooldown-range"),
    ("evict_seconds", "--evict-seconds"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of elastic jobs, and those that query one."""
    group = parser.add_argument_group("elastic jobs, whose ranks come and go")
    add = group.add_argument
    add(
        "--min-np",
        "--min-num-proc",
        dest="min_num_proc",
        metavar="N",
        help="the minimum number of ranks to continue with (default: -np)",
    )
    add(
        "--max-np",
        "--max-num-proc",
        dest="max_num_proc",
        metavar="N",
        help="the maximum number of ranks (default: all slots)",
    )
    add(
        "--slots-per-host", metavar="N", help="slots of hosts that the script prints without :slots"
    )
    add(
        "--host-discovery-script",
        metavar="SCRIPT",
        help="a script that prints the available hosts, one host:slots per line; runs every second",
    )
    add(
        "--elastic-timeout",
        metavar="S",
        help="seconds to wait with fewer than --min-np ranks (default 600)",
    )
    add(
        "--reset-limit",
        metavar="N",
        help="maximum number of changes of the ranks (default: no limit)",
    )
    add(
        "--blacklist-cooldown-range",
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="seconds for which a host is not used after its processes fail: LOW at first, then "
        "twice as long each time, up to HIGH (default 10 300)",
    )
    add(
        "--evict-seconds",
        metavar="S",
        help="seconds after which ranks that have not noticed a failure are killed (default 30)",
    )
    asking = parser.add_argument_group("asking an elastic job, from another terminal")
    asking.add_argument(
        "--status",
        action="store_true",
        help="show the state of its ranks and what is stuck; on a terminal, updated every second",
    )
    asking.add_argument("--drain", metavar="HOST", help="stop using a host after the next commit")
    asking.add_argument(
        "--job", metavar="PID", help="the process id of its launcher, if there are several jobs"
    )
    asking.add_argument("--json", action="store_true", help="print --status as JSON")


def wanted(arguments: argparse.Namespace) -> str | None:
    """Return the flag that makes the job elastic; None if it is not."""
    for name, flag in _ELASTIC:
        if getattr(arguments, name) is not None:
            return flag
    return None


def parse_rules(arguments: argparse.Namespace, grace_s: float) -> Rules:
    """Return the rules of the job. Raises UsageError, which names the invalid flag."""
    from horoscale.driver import Rules

    min_np = _count("--min-np", arguments.min_num_proc)
    given_np = _count("-np", arguments.num_proc)
    max_np = _count("--max-np", arguments.max_num_proc)
    np = given_np or min_np
    if np is None:
        raise usage.UsageError("how many ranks? Give -np N or --min-np N")
    counts = [("--min-np", min_np), ("-np", given_np), ("--max-np", max_np)]
    given = [(flag, count) for flag, count in counts if count is not None]
    for (low, least), (high, most) in pairwise(given):
        if least > most:
            raise usage.UsageError(f"{low} {least} is more than {high} {most}")
    return Rules(
        np=np,
        min_np=min_np or np,
        max_np=max_np or UNLIMITED,
        elastic_timeout_s=usage.seconds("--elastic-timeout", arguments.elastic_timeout, 600.0),
        evict_s=usage.seconds("--evict-seconds", arguments.evict_seconds, 30.0),
        reset_limit=_count("--reset-limit", arguments.reset_limit, least=0),
        grace_s=grace_s,
        leave_s=max(30.0, grace_s),
        bans=_bans(arguments),
    )


def parse_hosts(
    arguments: argparse.Namespace, rules: Rules, given: Sequence[Host], own_name: str
) -> tuple[tuple[tuple[str, int], ...] | None, int | None]:
    """Return the fixed hosts, or None if a script discovers them, and the slots of others.

    Raises UsageError if fixed hosts can never be enough.
    """
    slots = _count("--slots-per-host", arguments.slots_per_host)
    if arguments.host_discovery_script is not None:
        if given:
            raise usage.UsageError("give --host-discovery-script, or -H or --hostfile, not both")
        return None, slots
    if given:
        fixed = tuple((host.name, host.slots) for host in given)
    else:
        fixed = ((own_name, slots or (rules.np if rules.max_np == UNLIMITED else rules.max_np)),)
    total = sum(count for _, count in fixed)
    if total < rules.np:
        raise usage.UsageError(
            f"the job starts with {rules.np} ranks, but the hosts have only {total} slots"
        )
    return fixed, slots


def check_checkpoints(job_environment: Mapping[str, str]) -> None:
    """Raise UsageError if an interval for checkpoints is given, but no folder."""
    every = read_by_ranks(job_environment, "CHECKPOINT_EVERY")
    if every and not read_by_ranks(job_environment, "CHECKPOINT_DIR"):
        raise usage.UsageError("--checkpoint-every needs --checkpoint-dir DIR")


def check_resumable(job_environment: Mapping[str, str]) -> None:
    """Raise UsageError if the job would find no checkpoint to resume from on this host."""
    folder = read_by_ranks(job_environment, "RESUME")
    if not folder:
        return
    from horoscale.elastic.checkpoints import has_checkpoints, may_begin_anew  # imports numpy

    place, own = Path(folder), read_by_ranks(job_environment, "CHECKPOINT_DIR")
    if not has_checkpoints(place) and not may_begin_anew(place, Path(own) if own else None):
        raise usage.UsageError(f"--resume: there is no checkpoint in {folder}")


def _bans(arguments: argparse.Namespace) -> BanPolicy:
    from horoscale.driver import BanPolicy

    cooldown = None
    if arguments.blacklist_cooldown_range is not None:
        flag = "--blacklist-cooldown-range"
        low, high = (usage.seconds(flag, text, 0.0) for text in arguments.blacklist_cooldown_range)
        if not 0 < low <= high:
            raise usage.UsageError(f"{flag}: expected 0 < LOW <= HIGH, not {low:g} {high:g}")
        cooldown = (low, high)
    if arguments.compat:
        return BanPolicy.horovod(cooldown)
    return BanPolicy() if cooldown is None else BanPolicy(cooldown_s=cooldown)


def _count(flag: str, text: str | None, least: int = 1, most: int = UNLIMITED) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise usage.UsageError(f"{flag}: expected a number from {least} to {most}, not {text!r}")
    return int(text)


# ------------------------------------------------------------------ querying a job


def ask(arguments: argparse.Namespace, show: Callable[[str], object]) -> None:
    """Execute --status or --drain. Raises control.ControlError."""
    job = _count("--job", arguments.job, most=_MAX_PID)
    if arguments.drain is not None:
        control.ask({"kind": "drain", "host": arguments.drain}, job)
        show(f"the job stops using {arguments.drain} after its next commit\n")
        return
    show_status(lambda: control.ask({"kind": "status"}, job), arguments.json, show)
