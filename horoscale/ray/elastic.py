"""An elastic job on Ray, whose ranks follow the cluster's nodes.

An actor reserves the resources of each rank and runs an agent. The launcher with its elastic driver
connects to the nodes through the agents. Each node is a host.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError as RaysError
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horoscale.engines.agents import job as agents_job
from horoscale.engines.agents.agent import Invitation, Seat, serve
from horoscale.engines.agents.driver import Agents, AgentsError
from horoscale.ray.placement import describe_cluster, nodes
from horoscale.ray.settings import RayError, RaySettings, Shape
from horoscale.runner import reach

_LOOK_S = 1.0


@dataclass(frozen=True)
class ElasticShape:
    """The numbers of ranks, and further parameters of horoscale.run() for an elastic job."""

    num: int  # initial number of ranks
    least: int
    most: int | None
    reset_limit: int | None = None
    cooldown_range: tuple[float, float] | None = None
    elastic_timeout: float | None = None


class Place:
    """The actor that reserves a rank's resources on a node."""

    def serve(self, invitation: Invitation, index: int, node: str) -> None:
        """Run the agent there until the job is over."""
        context = ray.get_runtime_context()
        devices = tuple(map(str, context.get_accelerator_ids().get("GPU", [])))
        host = f"{ray.util.get_node_ip_address()}-{node[:8]}".replace(":", ".")
        serve(invitation, Seat(host, index, devices=devices))


def run_elastic(
    shape: Shape,
    ranks: ElasticShape,
    settings: RaySettings,
    env: Mapping[str, str],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> list[Any]:
    """Call a function on ranks that follow the nodes; return the results of the final ranks.

    Raises what horoscale.run() raises, and RayError if the cluster has too few resources.
    """
    try:
        agents = Agents(tuple(reach.own_addresses(list(settings.nics))))
    except AgentsError as error:
        raise RayError(str(error)) from error
    places = _Places(agents.invitation, shape, ranks.most)
    call = agents_job.Call(function, args, kwargs, env, nics=settings.nics)
    failure: str | None = "the job failed"
    try:
        try:
            agents.wait(ranks.num, settings.placement_group_timeout_s, places.check)
        except AgentsError as error:
            raise RayError(
                f"{ranks.num} ranks of {shape} each: {error}; {places.describe()}"
            ) from error
        results = agents_job.run_elastic(
            agents,
            call,
            np=ranks.num,
            min_num_proc=ranks.least,
            max_num_proc=ranks.most,
            reset_limit=ranks.reset_limit,
            cooldown_range=ranks.cooldown_range,
            elastic_timeout=ranks.elastic_timeout,
            start_timeout=settings.timeout_s,
        )
        failure = None
        return results
    finally:
        places.close()
        agents.close(failure)


class _Places:
    """Keeps an actor for each rank that fits on the nodes; checks the nodes once a second."""

    def __init__(self, invitation: Invitation, shape: Shape, most: int | None) -> None:
        self._invitation = invitation
        self._shape = shape
        self._most = most
        self._actor = ray.remote(Place)
        self._numbers = itertools.count()
        self._held: dict[Any, tuple[Any, str]] = {}  # actor and node by the call of serve()
        self._problem: str | None = None  # why an actor could not become an agent
        self._failure: str | None = None  # the last failure, perhaps a transient one
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="horoscale-ray", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise RayError if actors can't become agents."""
        if self._problem is not None:
            raise RayError(self._problem)

    def describe(self) -> str:
        """Return possible reasons why actors do not start, for an error."""
        room = describe_cluster(self._shape)
        return room if self._failure is None else f"{room}; an actor failed: {self._failure}"

    def close(self) -> None:
        """Release the resources."""
        self._over.set()
        self._thread.join()
        for actor, _ in self._held.values():
            with contextlib.suppress(RaysError):
                ray.kill(actor)

    def _run(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(RaysError):  # for example while the head node is busy
                self._forget_ended()
                self._fill()
            self._over.wait(_LOOK_S)

    def _forget_ended(self) -> None:
        if not self._held:
            return
        ended, _ = ray.wait(list(self._held), num_returns=len(self._held), timeout=0)
        for call in ended:
            self._held.pop(call)
            try:
                ray.get(call)
            except RaysError as error:
                text = str(error)
                lacking = "No module named 'horoscale" in text
                if lacking:
                    self._problem = (
                        "a node of the cluster has no horoscale: install it there as here"
                    )
                elif "AgentError" in text:
                    self._problem = text.strip().splitlines()[-1]
                else:
                    self._failure = _in_a_line(error)

    def _fill(self) -> None:
        for node, resources in sorted(nodes().items()):
            here = sum(held == node for _, held in self._held.values())
            wanted = self._shape.fits(resources) - here
            if self._most is not None:
                wanted = min(wanted, self._most - len(self._held))
            for _ in range(wanted):
                actor = self._actor.options(
                    num_cpus=self._shape.cpus,
                    num_gpus=self._shape.gpus,
                    max_restarts=0,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                ).remote()
                call = actor.serve.remote(self._invitation, next(self._numbers), node)
                self._held[call] = (actor, node)


def _in_a_line(error: RaysError) -> str:
    """Return an actor's exception, or Ray's explanation of its death, in one line."""
    text = str(error).strip()
    if isinstance(error, RayTaskError):  # a traceback
        text = text.splitlines()[-1]
    return " ".join(text.split())[:500]
