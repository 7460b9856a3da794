"""The specification of an elastic job, and its state of each host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from horoscale.driver import Rules, Start
from horoscale.driver.discovery import Hosts


@dataclass(frozen=True)
class ElasticSpec:
    """The additional specification of an elastic job."""

    rules: Rules
    hosts: Hosts | None  # None: a script discovers them
    script: str | None
    slots_per_host: int | None
    command_of: Callable[[str], Sequence[str]]  # command of a host's supervisor; may block
    network_timeout_s: float  # for an unresponsive host


@dataclass
class ElasticHost:
    """A host whose supervisor is running or starting."""

    index: int
    name: str
    command: Sequence[str]
    address: str | None = None  # address at which this host reaches the store
    waiting: list[Start] = field(default_factory=list)
    reach_by: float | None = None
    running: set[int] = field(default_factory=set)
