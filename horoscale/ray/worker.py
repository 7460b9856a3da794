"""Worker: one rank, as a Ray actor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

from horoscale.engines.tasks import perform_rank
from horoscale.runner.environment import encrypts
from horoscale.runner.rendezvous import Rendezvous


@dataclass(frozen=True)
class Seat:
    """The location of an actor, and the GPUs that Ray has assigned to it."""

    node: str
    address: str
    gpus: tuple[str, ...]


class Worker:
    """The actor. The driver prints its output after its rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._rendezvous: Rendezvous | None = None
        self._executable: Any = None

    def __repr__(self) -> str:
        """Return the prefix that Ray prints before the actor's lines."""
        return f"rank {self._rank}"

    def seat(self) -> Seat:
        """Return the location of this actor."""
        context = ray.get_runtime_context()
        gpus = tuple(map(str, context.get_accelerator_ids().get("GPU", [])))
        return Seat(context.get_node_id(), ray.util.get_node_ip_address(), gpus)

    def serve(self, env: Mapping[str, str]) -> tuple[str, str]:
        """Serve the store of a job with these variables at this node's address.

        Returns host:port and the secret.
        """
        self._rendezvous = serve_store(env)
        return self._rendezvous.address, self._rendezvous.secret

    def configure(self, variables: Mapping[str, str]) -> None:
        """Become a rank of a job."""
        os.environ.update(variables)

    def create(self, task: bytes) -> bytes:
        """Call a pickled task that creates the object for execute(); return an outcome of None."""
        return perform_rank(task, (self._keep,))

    def _keep(self, made: Any) -> None:
        self._executable = made

    def perform(self, task: bytes) -> bytes:
        """Call a pickled task on this rank; return its outcome, pickled."""
        return perform_rank(task)

    def execute(self, task: bytes) -> bytes:
        """Call a pickled task with the object from create()."""
        return perform_rank(task, (self._executable,))

    def value(self, task: bytes) -> Any:
        """Call a pickled task and return its value, or raise its exception, for run_remote()."""
        from horoscale.common import job
        from horoscale.runner.task import call

        try:
            return call(task)
        except Exception as error:
            job.stop(f"{type(error).__name__}: {error}"[:300])
            raise


def serve_store(env: Mapping[str, str]) -> Rendezvous:
    """Serve the store of a job with these variables at this node's address."""
    return Rendezvous(ray.util.get_node_ip_address(), encrypt=encrypts({**os.environ, **env}))
