"""The driver of elastic jobs: which processes there are, and which of them are the job's ranks.

A library for launchers: horoscalerun's own, and executors of other engines. `Driver` carries out
what `Membership` decides, through a `Launcher` that starts and stops processes. Membership is pure:
events and the time go in, actions come out.
"""

from __future__ import annotations

from horoscale.driver.bans import BanPolicy
from horoscale.driver.driver import Driver, Launcher
from horoscale.driver.events import Finish, Start
from horoscale.driver.membership import Membership, Rules

__all__ = ["BanPolicy", "Driver", "Finish", "Launcher", "Membership", "Rules", "Start"]
