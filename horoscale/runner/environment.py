"""The environment of a rank: what the launcher sets for it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from horoscale.runner.hosts import Place

# What describes a rank of the job that the launcher itself may be part of.
_NOT_INHERITED = ("SECRET", "SECRET_FILE", "TASK_FD", "RESULT_FD")


def job_environment(
    inherited: Mapping[str, str], variables: Mapping[str, str], secret: str, rendezvous: str
) -> dict[str, str]:
    """What all ranks share: the user's environment, the flags, and the way to the store."""
    environment = dict(inherited)
    for name in _NOT_INHERITED:
        environment.pop(f"HOROSCALE_{name}", None)
        environment.pop(f"HOROVOD_{name}", None)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    environment.update({f"HOROSCALE_{name}": value for name, value in variables.items()})
    environment["HOROSCALE_RENDEZVOUS"] = rendezvous
    environment["HOROSCALE_RENDEZVOUS_SERVED"] = "1"  # by the launcher, not by rank 0
    environment["HOROSCALE_SECRET"] = secret
    return environment


def rank_environment(place: Place) -> dict[str, str]:
    """What tells a rank who it is, under our names and under Horovod's."""
    values = {
        "RANK": place.rank,
        "SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_SIZE": place.local_size,
        "CROSS_RANK": place.cross_rank,
        "CROSS_SIZE": place.cross_size,
        "HOSTNAME": place.hostname,
        "CONTROLLER": "gloo",
    }
    return {
        f"{package}_{name}": str(value)
        for package in ("HOROSCALE", "HOROVOD")
        for name, value in values.items()
    }


def with_path_first(environment: Mapping[str, str], name: str, directory: str) -> dict[str, str]:
    """The environment with a directory put first on a search path such as PATH."""
    rest = environment.get(name)
    return {**environment, name: f"{directory}{os.pathsep}{rest}" if rest else directory}
