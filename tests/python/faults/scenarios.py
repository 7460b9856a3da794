"""Which fault in which phase, what is expected of it, and how long it may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

START_TIMEOUT_S = 3.0  # HOROSCALE_START_TIMEOUT
STALL_LIMIT_S = 2.0  # HOROSCALE_STALL_SHUTDOWN_TIME_SECONDS
SURVIVORS_S = 1.0  # the slowest survivor, where the fault can be seen
SILENCE_LIMIT_S = 5.0  # HOROSCALE_NETWORK_TIMEOUT_SECONDS, where the network fails
LOOK_S = 2.0  # what is only noticed by looking at the clock is noticed so late

PHASES = ("connect", "handshake", "negotiate", "execute", "shutdown")


@dataclass(frozen=True)
class Scenario:
    """A fault, where it strikes, and what has to come of it."""

    fault: str  # as the table has it
    phase: str
    action: str  # of rank.py and the shim
    limit_s: float  # between the fault and the last survivor's error
    call: str = ""  # FAULT_CALL of the shim; empty: rank.py strikes
    names_victim: bool = True  # the survivors' errors
    harmless: bool = False  # nobody gets an error
    victim_raises: str = ""  # words of what the victim itself says, where it lives to say something
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
        action = "fail"  # an exception of the library's own: its system call fails
    limit_s = SURVIVORS_S
    # Who has not reached the store yet, or is stopped, can't be told from one that is late.
    if phase == "connect" or (starting and action == "stop"):
        limit_s = START_TIMEOUT_S + LOOK_S
    elif action == "stop":
        limit_s = STALL_LIMIT_S + LOOK_S
    # Python code strikes before it calls shutdown(); everything else from inside of it, when the
    # victim has said goodbye.
    by_python = phase in ("negotiate", "execute") or action == "raise"
    return Scenario(
        fault,
        phase,
        action,
        limit_s,
        call="" if by_python else _CALLS[phase],
        # Without its links a rank knows only who does not answer it: that may be a victim's victim.
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
        variables={"HOROSCALE_RENDEZVOUS_SERVED": "0"},  # rank 0 is to serve where somebody does
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
