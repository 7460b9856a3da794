"""torch.distributed over two hosts with separate networks, started with torchrun's variables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launcher_process import environment
from support import namespaces
from support.namespaces import NetworkHosts

pytestmark = pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))

PATIENCE_S = 120
ON_EACH = 2  # ranks
# The result of each operation depends on all ranks' inputs.
PROGRAM = """
import torch
import torch.distributed as dist
import horoscale.torch as hvd, horoscale.torch.distributed

dist.init_process_group("horoscale")
rank, size = dist.get_rank(), dist.get_world_size()
far = (rank + size // 2) % size  # on the other host
assert hvd.local_size() == size // 2

total = torch.full((300_000,), float(rank))
dist.all_reduce(total)
assert total.unique().tolist() == [sum(range(size))]
parts = [torch.empty(one + 1) for one in range(size)]
dist.all_gather(parts, torch.full((rank + 1,), float(rank)))
assert [part.tolist() for part in parts] == [[float(one)] * (one + 1) for one in range(size)]
own = torch.empty(1000)
dist.reduce_scatter_tensor(own, torch.arange(1000.0 * size))
assert torch.equal(own, size * (torch.arange(1000.0) + 1000 * rank))
swapped = torch.empty(size)
dist.all_to_all_single(swapped, torch.arange(size) * 10.0 + rank)
assert swapped.tolist() == [10.0 * rank + one for one in range(size)]
told = [f"from {rank}"]
dist.broadcast_object_list(told, src=size - 1)
assert told == [f"from {size - 1}"]

for count in (1, 300_000):
    got = torch.empty(count)
    works = [dist.isend(torch.full((count,), float(rank)), far, tag=count),
             dist.irecv(got, far, tag=count)]
    for work in works:
        work.wait()
    assert got.unique().tolist() == [far]
if rank == 0:
    senders = [dist.recv(torch.empty(2), tag=7) for _ in range(size - 1)]
    assert sorted(senders) == list(range(1, size))
else:
    dist.send(torch.ones(2), dst=0, tag=7)

for members in ([0, size // 2], [size - 1, 1, 0], [1, 2]):
    group = dist.new_group(members, sort_ranks=False)
    if rank in members:
        whole = [None] * len(members)
        dist.all_gather_object(whole, rank, group=group)
        assert whole == members, (whole, members)
        value = torch.full((5,), float(rank))
        dist.broadcast(value, src=members[-1], group=group)
        assert value.tolist() == [members[-1]] * 5
dist.monitored_barrier()
dist.destroy_process_group()
print("done")
"""


@pytest.mark.timeout(PATIENCE_S + 30)
def test_collectives_messages_and_groups(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with NetworkHosts(2) as hosts:
        shared = {
            "WORLD_SIZE": str(2 * ON_EACH),
            "MASTER_ADDR": hosts.addresses[0],
            "MASTER_PORT": "29500",
            "OMP_NUM_THREADS": "1",
        }
        ranks = [
            subprocess.Popen(
                hosts.command(rank // ON_EACH, sys.executable, program),
                env=environment()
                | shared
                | {"RANK": str(rank), "LOCAL_RANK": str(rank % ON_EACH)}
                | {"HOROSCALE_HOSTNAME": hosts.names[rank // ON_EACH]},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2 * ON_EACH)
        ]
        ended = [(rank, *rank.communicate(timeout=PATIENCE_S)) for rank in ranks]
    for rank, out, err in ended:
        assert (rank.returncode, out) == (0, "done\n"), err
