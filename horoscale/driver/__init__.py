"""The driver of elastic jobs: decides which processes exist, and which of them are ranks.

A library for launchers: horoscalerun, and executors of other engines. `Membership` makes the
decisions: it is pure, maps events and times to actions, and performs no I/O. `Driver` executes the
actions through a `Launcher` that starts and stops processes.
"""

from __future__ import annotations

from horoscale.driver.bans import BanPolicy
from horoscale.driver.driver import Driver, Launcher
from horoscale.driver.events import Finish, Start
from horoscale.driver.membership import Membership, Rules

__all__ = ["BanPolicy", "Driver", "Finish", "Launcher", "Membership", "Rules", "Start"]
