"""A JobWatch of simulated ranks, second by second, on its own clock."""

from __future__ import annotations

import json
import random

from horoscale.watch.job import JobWatch

TENSORS = 40


class WatchedJob:
    """`ranks` ranks on hosts of eight, which report like real ones."""

    def __init__(
        self, ranks: int, *, elastic: bool = False, compressed: bool = False, seed: int = 1
    ) -> None:
        self.now = 1000.0
        self.random = random.Random(seed)
        self.watch = JobWatch(
            "python train.py",
            elastic=elastic,
            clock=lambda: self.now,
            wall=lambda: 1_700_000_000.0 + self.now,
        )
        self.size = ranks
        self.compressed = compressed
        self.steps = 0
        self.totals = {rank: [0.0, 0.0, 0.0] for rank in range(ranks)}
        self.stalled: set[int] = set()
        self.stalled_for = 0.0
        self.sent_bytes = 0  # of reports
        for rank in range(ranks):
            self.watch.host(self.host_of(rank), "up")
            self.watch.started(rank, rank, self.host_of(rank), rank % 8)

    @staticmethod
    def host_of(rank: int) -> str:
        return f"node{rank // 8:03d}"

    def report(self, rank: int) -> dict[str, object]:
        """A rank's current report, in full."""
        waits = bool(self.stalled) and rank not in self.stalled
        own = {
            "set": 0,
            "ranks": f"0-{self.size - 1}",
            "operations": self.steps * TENSORS,
            "last_operation": "gradient.layers.11.mlp.weight",
            "executing": "" if self.stalled else "gradient.layers.3.attention.weight",
            "pending": TENSORS if waits else 0,
            "pending_operation": "gradient.layers.0.weight" if waits else "",
            "pending_seconds": self.stalled_for if waits else 0.0,
        }
        seconds, exposed, waiting = self.totals[rank]
        peer = (rank + 8) % self.size
        done = self.steps * 220_000_000
        return {
            "at": self.now,
            "view": 0,
            "step": self.steps,
            "computing_seconds": seconds - exposed - waiting,
            "waiting_seconds": exposed + waiting,
            "sets": [own],
            "steps": [self.steps, seconds, exposed, waiting],
            "operations": self.steps * TENSORS,
            "reduced_bytes": done,
            "message_bytes": 0,
            "shared_bytes": done,
            "network_bytes": done // 8,
            "links": {str(peer): done // 8},
            "late": {"3": [self.steps, 0.25 * self.steps]} if rank == 0 else {},
            **(self.encoded() if self.compressed else {}),
        }

    def encoded(self) -> dict[str, object]:
        """What a rank reports of encodings."""
        done = self.steps * 220_000_000 // 8
        return {
            "encodings": {"0": {"int8": [done, done // 4, 0.006]}},
            "adaptive": {"0": {"int8": TENSORS - 8, "none": 8}},
        }

    def second(self, steps: int = 6) -> None:
        """Advance by a second with this many steps; none while a rank is stalled."""
        for host, payload in self.payloads(steps):
            self.sent_bytes += len(payload)
            self.watch.report(json.loads(payload), host)

    def payloads(self, steps: int = 6) -> list[tuple[str, bytes]]:
        """Advance by a second; return the report of each host."""
        self.now += 1.0
        if self.stalled:
            self.stalled_for += 1.0
            steps = 0
        self.steps += steps
        for totals in self.totals.values():
            exposed = steps * self.random.uniform(0.018, 0.030)
            waiting = steps * self.random.uniform(0.002, 0.012)
            totals[0] += steps / 6
            totals[1] += exposed
            totals[2] += waiting
        told = []
        for first in range(0, self.size, 8):
            ranks = range(first, min(first + 8, self.size))
            payload = json.dumps({rank: self.report(rank) for rank in ranks}).encode()
            told.append((self.host_of(first), payload))
        return told
