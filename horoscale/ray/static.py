"""A job on Ray with fixed ranks: one actor each, in a placement group."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.exceptions import RayError as RaysError

from horoscale.engines.tasks import place_tasks, values, variables
from horoscale.ray.placement import Placement
from horoscale.ray.settings import RayError, RaySettings, Shape
from horoscale.ray.worker import Seat, Worker
from horoscale.runner.outcome import Outcome

# Time for the other ranks to raise and report errors themselves after the first failure.
SURVIVORS_S = 5.0  # Ray takes a moment to report the death of an actor
_CALLER = "horoscale.ray"


class StaticJob:
    """The actors of a job, until end()."""

    def __init__(
        self,
        placement: Placement,
        shape: Shape,
        settings: RaySettings,
        env: Mapping[str, str],
    ) -> None:
        """Store the parameters for begin(). Starts nothing."""
        self._placement = placement
        self._shape = shape
        self._settings = settings
        self._env = env
        self._places = place_tasks([slot.node for slot in placement.slots])
        self._workers: dict[int, Any] = {}
        self._lost: str | None = None

    def begin(self) -> None:
        """Start an actor for each slot, as a rank. Raises RayError if one can't start."""
        settings = self._settings
        self._start_actors()
        seconds = settings.placement_group_timeout_s + settings.timeout_s
        try:
            seats = self._seats(seconds)
            rendezvous, secret = ray.get(self._workers[0].serve.remote(self._env))
            common = {"HOROSCALE_START_TIMEOUT": f"{settings.timeout_s:g}"}
            if settings.nics:
                common["HOROSCALE_NETWORK_INTERFACE"] = ",".join(settings.nics)
            ray.get(
                [
                    self._workers[place.rank].configure.remote(
                        {
                            **common,
                            **_devices(place.hostname, seats),
                            **self._env,
                            **variables(place, rendezvous, secret),
                        }
                    )
                    for place in self._places
                ]
            )
        except GetTimeoutError as error:
            raise RayError(
                f"after {seconds:g} s not all of {len(self)} actors have started: something else "
                "holds their places, such as a caller that is in a bundle of its placement group"
            ) from error
        except RayActorError as error:
            raise RayError(start_failure(error)) from error
        except RayTaskError as error:
            raise RayError(f"an actor can't become a rank: {error}") from error

    def __len__(self) -> int:
        return len(self._workers)

    def call(self, method: str, task: bytes) -> list[Any]:
        """Call a task on all ranks by a method of Worker; return the results by rank.

        Raises the exception of the first rank that raised, caused by a RankError, and RayError if
        an actor died, which ends the job.
        """
        if self._lost is not None:
            raise RayError(f"{self._lost}; shutdown() and start() begin anew")
        shared = ray.put(task)
        running = {
            getattr(worker, method).remote(shared): rank for rank, worker in self._workers.items()
        }
        outcomes: dict[int, Outcome] = {}
        dead: dict[int, str] = {}
        deadline: float | None = None
        while running:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _ = ray.wait(list(running), num_returns=1, timeout=left)
            if not ready:
                break
            for reference in ready:
                self._take(reference, running.pop(reference), outcomes, dead)
            if deadline is None and (dead or any(one.failed for one in outcomes.values())):
                deadline = time.monotonic() + SURVIVORS_S
        if dead or running:
            self._raise_lost(dead, outcomes, sorted(running.values()))
        return values(outcomes, len(self._workers), _CALLER)

    def references(self, task: bytes) -> list[Any]:
        """Call a task on all ranks; return references to the results."""
        shared = ray.put(task)
        return [self._workers[rank].value.remote(shared) for rank in range(len(self))]

    def one(self, rank: int, method: str, task: bytes) -> Any:
        """Call a task on one rank; return its result."""
        outcome = pickle.loads(ray.get(getattr(self._workers[rank], method).remote(task)))
        if outcome.failed:
            values({rank: outcome}, 0, _CALLER)
        return pickle.loads(outcome.pickled)

    def end(self) -> None:
        """End the actors and release their resources."""
        for worker in self._workers.values():
            with contextlib.suppress(RaysError):
                ray.kill(worker)
        self._workers.clear()
        self._placement.release()

    def _start_actors(self) -> None:
        actor = ray.remote(Worker)
        slots = zip(self._placement.slots, self._places, strict=True)
        for slot, place in sorted(slots, key=lambda pair: pair[1].rank):
            self._workers[place.rank] = actor.options(
                num_cpus=self._shape.cpus,
                num_gpus=self._shape.gpus,
                max_restarts=0,
                scheduling_strategy=self._placement.strategy(slot),
            ).remote(place.rank)

    def _seats(self, seconds: float) -> list[Seat]:
        seats = [worker.seat.remote() for worker in self._workers.values()]
        return list(ray.get(seats, timeout=seconds))

    def _take(
        self, reference: Any, rank: int, outcomes: dict[int, Outcome], dead: dict[int, str]
    ) -> None:
        try:
            outcomes[rank] = pickle.loads(ray.get(reference))
        except RaysError as error:  # a rank's own exception would be an outcome
            dead[rank] = " ".join(str(error).split())[:500]

    def _raise_lost(
        self, dead: Mapping[int, str], outcomes: Mapping[int, Outcome], stuck: Sequence[int]
    ) -> None:
        """Raise the error for a rank that died, or one that does not end."""
        failures = {rank: one for rank, one in outcomes.items() if one.failed}
        names = ", ".join(map(str, dead or stuck))
        what = f"rank {names} died" if dead else f"rank {names} did not end after others failed"
        self._lost = f"{_CALLER}: {what}"
        said = "; ".join(f"rank {rank}: {text}" for rank, text in dead.items())
        told = "".join(f"\nrank {rank}:\n{one.traceback}" for rank, one in failures.items())
        if failures and not dead:
            values(failures, len(self._workers), _CALLER)
        raise RayError(f"{self._lost}{': ' if said else ''}{said}{told}")


def _devices(node: str, seats: Sequence[Seat]) -> dict[str, str]:
    """Return the variables that show a rank all GPUs of the job on its node, by hvd.local_rank().

    Ray shows each actor only its own, which would be number 0 in all of them.
    """
    ids = [gpu for seat in seats if seat.node == node for gpu in seat.gpus]
    return {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(ids))} if ids else {}


def start_failure(error: Exception) -> str:
    """Return advice for the user about an actor that did not start."""
    text = str(error)
    if "No module named 'horoscale" in text:
        return (
            "a node of the cluster has no horoscale: install it there as here (pip install "
            f"horoscale), or give it to ray.init(runtime_env=...). Ray says: {_last_line(text)}"
        )
    return f"an actor did not start: {text}"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "No module named" in line]
    return lines[-1].strip()
