"""What an elastic job is given, and what it knows of each host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from horoscale.driver import Rules, Start
from horoscale.driver.discovery import Hosts


@dataclass(frozen=True)
class ElasticSpec:
    """What makes a job elastic."""

    rules: Rules
    hosts: Hosts | None  # None: the script says
    script: str | None
    slots_per_host: int | None
    command_of: Callable[[str], Sequence[str]]  # what starts a supervisor on a host; may block
    network_timeout_s: float  # for a host without a sign of life


@dataclass
class ElasticHost:
    """A host with a supervisor, or one that is being started."""

    index: int
    name: str
    command: Sequence[str]
    address: str | None = None  # of the store, as this host reaches it
    waiting: list[Start] = field(default_factory=list)
    reach_by: float | None = None
    running: set[int] = field(default_factory=set)
