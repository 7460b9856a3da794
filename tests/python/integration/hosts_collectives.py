"""A rank of a job whose hosts are what HOROSCALE_HOSTNAME says: sums bit by bit, and bytes sent.

Argument: the host of each rank, as one letter. HOROSCALE_PARTITION_BYTES may cut the tensors.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
from support.reference import AVERAGE, MAX, SUM, reduced_by_hosts, values

import horoscale.numpy as hvd

HOSTS = sys.argv[1]
SIZES = (0, 1, 1000, 20_011, 700_001)
OPS = {SUM: hvd.Sum, AVERAGE: hvd.Average, MAX: hvd.Max}
MEGABYTES = 12  # in chunks that all hosts and lanes share evenly


def inputs(dtype: str, size: int, ranks: list[int]) -> list[np.ndarray]:
    """The tensors of the ranks."""
    return [values(dtype, size, rank) for rank in ranks]


def check_bits(process_set: hvd.ProcessSet, ranks: list[int]) -> None:
    """Compare sums of tensors that travel together, and alone, with their definition."""
    hosts = [HOSTS[rank] for rank in ranks]
    for dtype in ("float16", "float32", "float64", "int8"):
        for name, op in OPS.items():
            contributions = [inputs(dtype, size, ranks) for size in SIZES]
            handles = [
                hvd.allreduce_async(
                    mine[ranks.index(hvd.rank())],
                    op=op,
                    name=f"{dtype} {name} {mine[0].size}",
                    process_set=process_set,
                )
                for mine in contributions
            ]
            for handle, all_of_them in zip(handles, contributions, strict=True):
                expected = reduced_by_hosts(all_of_them, hosts, name)
                result = hvd.synchronize(handle)
                same = result.tobytes() == expected.tobytes()
                assert same, (dtype, name, all_of_them[0].size, result, expected)


def bytes_of_hosts(operation: str, tensor: np.ndarray) -> dict[str, int]:
    """The bytes of chunks that left each host for an operation on the tensor."""
    hvd.barrier()
    before = hvd.metrics()["network_bytes_sent"]
    if operation == "allreduce":
        hvd.allreduce(tensor, op=hvd.Sum, name="counted")
    elif operation == "broadcast":
        hvd.broadcast(tensor, 0, name="counted")
    else:
        hvd.allgather(tensor, name="counted")
    sent = hvd.metrics()["network_bytes_sent"] - before
    by_host = Counter(dict.fromkeys(HOSTS, 0))
    for host, count in zip(HOSTS, hvd.allgather_object(sent), strict=True):
        by_host[host] += count
    return dict(by_host)


def check_bytes() -> None:
    """A byte leaves a host as often as the algorithms' documents say."""
    ranks, hosts = len(HOSTS), len(set(HOSTS))
    tensor = np.ones(MEGABYTES << 18, np.float32)
    sent = bytes_of_hosts("allreduce", tensor)
    assert sum(sent.values()) == 2 * (hosts - 1) * tensor.nbytes, sent
    for count in sent.values():
        assert abs(count - 2 * (hosts - 1) * tensor.nbytes // hosts) < tensor.nbytes // 100, sent
    sent = bytes_of_hosts("broadcast", tensor)
    expected = dict.fromkeys(HOSTS, 0) | {HOSTS[0]: (hosts - 1) * tensor.nbytes}
    assert sent == expected, sent
    sent = bytes_of_hosts("allgather", tensor)
    for host, members in Counter(HOSTS).items():
        counts = 8 * members * (ranks - members)  # of rows
        assert sent[host] == members * (hosts - 1) * tensor.nbytes + counts, sent


def main() -> None:
    """Check everything on the global set, and the bits on one that has only some of each host."""
    some = list(range(1, len(HOSTS)))
    hvd.init(process_sets=[part := hvd.ProcessSet(some)])
    check_bits(hvd.global_process_set, list(range(len(HOSTS))))
    if hvd.rank() in some:
        check_bits(part, some)
    check_bytes()
    hvd.shutdown()


if __name__ == "__main__":
    main()
