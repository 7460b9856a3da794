"""Which fault in which phase, its expected result, and how long it may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

START_TIMEOUT_S = 3.0  # HOROSCALE_START_TIMEOUT
STALL_LIMIT_S = 2.0  # HOROSCALE_STALL_SHUTDOWN_TIME_SECONDS
SURVIVORS_S = 1.0  # the slowest survivor, if the fault is detected directly
SILENCE_LIMIT_S = 5.0  # HOROSCALE_NETWORK_TIMEOUT_SECONDS, where the network fails
LOOK_S = 2.0  # additional time if only a periodic check detects it

PHASES = ("connect", "handshake", "negotiate", "execute", "shutdown")


@dataclass(frozen=True)
class Scenario:
    """A fault, its phase, and the expected result."""

    fault: str  # as shown in the table
    phase: str
    action: str  # passed to rank.py and the shim
    limit_s: float  # between the fault and the last survivor's error
    call: str = ""  # FAULT_CALL of the shim; empty: rank.py strikes
    names_victim: bool = True  # the survivors' errors
    harmless: bool = False  # no rank gets an error
    victim_raises: str = ""  # text in the victim's own error, if it survives
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)  # of the victim
    over_hosts: bool = False  # rank 2 is on another host than ranks 0 and 1
    network: str = ""  # what happens to the link of rank 2's host
    victim: int | None = None  # None: any rank

    @property
    def name(self) -> str:
        """The cell of the table."""
        return f"{self.fault} / {self.phase}" + (" / hosts" if self.over_hosts else "")


_CALLS = {"connect": "connect", "handshake": "link", "shutdown": "shutdown"}
_FAULTS = {
    "kill -9": "kill",
    "SIGSTOP": "stop",
    "early exit": "exit",
    "exception": "raise",
}


def _in_phase(fault: str, action: str, phase: str) -> Scenario:
    starting = phase in ("connect", "handshake")
    if starting and action == "raise":
        action = "fail"  # an exception in the library itself: its system call fails
    limit_s = SURVIVORS_S
    # A rank that has not reached the store yet, or is stopped, looks like one that is late.
    if phase == "connect" or (starting and action == "stop"):
        limit_s = START_TIMEOUT_S + LOOK_S
    elif action == "stop":
        limit_s = STALL_LIMIT_S + LOOK_S
    # Python code triggers the fault before it calls shutdown(); all others inside of it, after the
    # victim's goodbye.
    by_python = phase in ("negotiate", "execute") or action == "raise"
    return Scenario(
        fault,
        phase,
        action,
        limit_s,
        call="" if by_python else _CALLS[phase],
        # Without links a rank only knows who does not answer it, and that may be a rank that waits
        # for the victim.
        names_victim=(action, phase) != ("stop", "handshake"),
        harmless=phase == "connect" and action == "fail",  # it tries again
        victim_raises="Input/output error" if action == "fail" else "",
    )


def _resource(fault: str, action: str, victim_raises: str) -> Scenario:
    return Scenario(fault, "connect", action, SURVIVORS_S, victim_raises=victim_raises)


def _harmless(fault: str, **variables: str) -> Scenario:
    return Scenario(fault, "execute", "none", SURVIVORS_S, harmless=True, variables=variables)


def _network(fault: str, network: str, phase: str) -> Scenario:
    starting = phase in ("connect", "handshake")
    limit_s = START_TIMEOUT_S + LOOK_S if starting else SILENCE_LIMIT_S
    return Scenario(
        fault,
        phase,
        "network",
        limit_s,
        call="" if phase in ("negotiate", "execute") else _CALLS[phase],
        over_hosts=True,
        network=network,
        victim=2,
    )


_ANYWHERE: tuple[Scenario, ...] = (
    *(_in_phase(fault, action, phase) for phase in PHASES for fault, action in _FAULTS.items()),
    _resource("EMFILE", "descriptors", "Too many open files"),
    _resource("ENOMEM", "address space", "Cannot allocate memory"),
    _resource("file size limit", "file size", "ulimit -f"),
    _harmless("half-open connections", FAULT_STRANGERS="20"),
)
ON_ONE_HOST: tuple[Scenario, ...] = (
    *_ANYWHERE,
    Scenario(
        "port already taken",
        "connect",
        "none",
        START_TIMEOUT_S + LOOK_S,
        victim_raises="Address already in use",
        variables={"HOROSCALE_RENDEZVOUS_SERVED": "0"},  # rank 0 expects another process to serve
        victim=0,
    ),
    _harmless("full disk: timeline", HOROSCALE_TIMELINE="/dev/full"),
    _harmless("full disk: log", FAULT_STDERR="/dev/full", HOROSCALE_LOG_LEVEL="trace"),
)
_NETWORK_FAULTS = {
    "cable pulled": "cut",
    "nothing arrives": "one way",
    "half-open link": "half open",
}
OVER_HOSTS: tuple[Scenario, ...] = (
    *(replace(scenario, over_hosts=True) for scenario in _ANYWHERE),
    *(
        _network(fault, network, phase)
        for fault, network in _NETWORK_FAULTS.items()
        for phase in PHASES
    ),
    replace(_harmless("slow link"), over_hosts=True, network="slow"),
)
SCENARIOS = ON_ONE_HOST + OVER_HOSTS
