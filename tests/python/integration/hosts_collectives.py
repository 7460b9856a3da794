"""Sums bit by bit, and the bytes sent, in a rank whose host is given by HOROSCALE_HOSTNAME.

Argument: the host of each rank, as one letter. HOROSCALE_PARTITION_BYTES may split the tensors.
"""

from __future__ import annotations

import os
import sys
from collections import Counter

import numpy as np
from support.reference import AVERAGE, MAX, SUM, reduced_by_hosts, values

import horoscale.numpy as hvd

HOSTS = sys.argv[1]
SIZES = (0, 1, 1000, 20_011, 700_001)
OPS = {SUM: hvd.Sum, AVERAGE: hvd.Average, MAX: hvd.Max}
MEGABYTES = 12  # divides evenly into chunks for all hosts and lanes


def inputs(dtype: str, size: int, ranks: list[int]) -> list[np.ndarray]:
    """The tensors of the ranks."""
    return [values(dtype, size, rank) for rank in ranks]


def check_bits(process_set: hvd.ProcessSet, ranks: list[int]) -> None:
    """Compare sums of fused and single tensors with their definition."""
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


def check_compression(process_set: hvd.ProcessSet, ranks: list[int]) -> None:
    """Compare compressed sums with their definition, bit by bit, and with the exact sums."""
    hosts = [HOSTS[rank] for rank in ranks]
    for wire_dtype, unit in (("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        compression = {"float16": hvd.Compression.fp16, "bfloat16": hvd.Compression.bf16}
        for dtype in ("float32", "float64", "int32"):
            for name, op in ((SUM, hvd.Sum), (AVERAGE, hvd.Average)):
                contributions = [inputs(dtype, size, ranks) for size in (1, 1000, 70_001)]
                results = hvd.grouped_allreduce(
                    [mine[ranks.index(hvd.rank())] for mine in contributions],
                    op=op,
                    compression=compression[wire_dtype],
                    process_set=process_set,
                )
                for result, all_of_them in zip(results, contributions, strict=True):
                    wire = None if dtype == "int32" else wire_dtype
                    expected = reduced_by_hosts(all_of_them, hosts, name, wire)
                    case = (wire_dtype, dtype, name, result.size)
                    assert result.tobytes() == expected.tobytes(), case
                    if wire is not None:
                        check_error(result, all_of_them, name, unit, case)


def check_one_hop(process_set: hvd.ProcessSet, ranks: list[int]) -> None:
    """Repeated small sums: planned the first time, then in one hop, with the same bits."""
    hosts = [HOSTS[rank] for rank in ranks]
    compressions = {None: hvd.Compression.none, "bfloat16": hvd.Compression.bf16}
    calls = 4
    for dtype, size, wire in (
        ("float16", 1000, None),
        ("float32", 1, None),
        ("float32", 2000, "bfloat16"),
        ("float64", 1000, None),
        ("int8", 37, None),
    ):
        for name, op in OPS.items():
            if wire is not None and name == MAX:
                continue
            before = one_hop(process_set)
            for call in range(calls):
                all_of_them = [values(dtype, size, rank, call) for rank in ranks]
                result = hvd.allreduce(
                    all_of_them[ranks.index(hvd.rank())],
                    op=op,
                    prescale_factor=0.5 if name == AVERAGE and dtype == "float32" else 1.0,
                    compression=compressions[wire],
                    process_set=process_set,
                )
                if name == AVERAGE and dtype == "float32":
                    all_of_them = [one * np.float32(0.5) for one in all_of_them]
                expected = reduced_by_hosts(all_of_them, hosts, name, wire)
                case = (dtype, name, size, wire, call)
                assert result.tobytes() == expected.tobytes(), case
            if len(ranks) > 1:
                assert one_hop(process_set) - before >= calls - 1, (dtype, name, size, wire)
    before = one_hop(process_set)
    for _ in range(calls):
        hvd.barrier(process_set=process_set)
    assert len(ranks) == 1 or one_hop(process_set) - before >= calls - 1


def one_hop(process_set: hvd.ProcessSet) -> int:
    """How many of the set's operations took one hop."""
    key = str(process_set.process_set_id)
    return int(hvd.metrics()["process_sets"][key]["one_hop"])


def check_error(
    result: np.ndarray, contributions: list[np.ndarray], name: str, unit: float, case: object
) -> None:
    """The error is at most half a unit in the last place for each host's sum and for the result."""
    exact = np.sum([one.astype(np.float64) for one in contributions], axis=0)
    bound = unit * np.sum([np.abs(one) for one in contributions], axis=0, dtype=np.float64)
    if name == AVERAGE:
        exact, bound = exact / len(contributions), bound / len(contributions)
    bound = 2.0 * bound + unit**2 + 1e-6
    assert np.all(np.abs(result - exact) <= bound), case


def bytes_of_hosts(operation: str, tensor: np.ndarray) -> dict[str, int]:
    """The bytes of chunks that left each host for an operation on the tensor."""
    hvd.barrier()
    before = hvd.metrics()["network_bytes_sent"]
    if operation == "allreduce":
        hvd.allreduce(tensor, op=hvd.Sum, name="counted")
    elif operation == "compressed":
        hvd.allreduce(tensor, op=hvd.Sum, name="counted", compression=hvd.Compression.bf16)
    elif operation == "broadcast":
        hvd.broadcast(tensor, 0, name="counted")
    else:
        hvd.allgather(tensor, name="counted")
    sent = hvd.metrics()["network_bytes_sent"] - before
    by_host = Counter(dict.fromkeys(HOSTS, 0))
    for host, count in zip(HOSTS, hvd.allgather_object(sent), strict=True):
        by_host[host] += count
    return dict(by_host)


def check_kinds() -> None:
    """Sets that only their members create, in an order that mixes the hosts."""
    order = [*range(len(HOSTS) - 1, -1, -2), *range(len(HOSTS) - 2, -1, -2)]
    for members_only in (True, False):
        process_set = hvd.add_process_set(order, members_only=members_only, ordered=True)
        size, position = len(order), order.index(hvd.rank())
        for rows in (1, 30_000):
            own = np.full((rows + hvd.rank(), 2), hvd.rank())
            expected = np.concatenate([np.full((rows + rank, 2), rank) for rank in order])
            assert (hvd.allgather(own, process_set=process_set) == expected).all()
            gathered = hvd.gather(own, 0, process_set=process_set)
            assert hvd.rank() > 0 or (gathered == expected).all()
            splits = [rows * (to + 1) for to in range(size)]
            dealt = np.repeat(np.arange(size), splits)
            received, _ = hvd.alltoall(dealt + 100 * hvd.rank(), splits, process_set=process_set)
            sources = np.repeat([100 * rank + position for rank in order], splits[position])
            assert (received == sources).all()
            mine = hvd.scatter(dealt, 0, splits, process_set=process_set)
            assert (mine == np.full(splits[position], position)).all()
            values_of_rank = values("float32", sum(splits), hvd.rank())
            total = hvd.allreduce(values_of_rank, op=hvd.Sum, process_set=process_set)
            assert total.tobytes() == hvd.allreduce(values_of_rank, op=hvd.Sum).tobytes()
            part = hvd.reducescatter(
                values_of_rank, op=hvd.Sum, splits=splits, process_set=process_set
            )
            first = sum(splits[:position])
            assert part.tobytes() == total[first : first + splits[position]].tobytes()
        assert hvd.remove_process_set(process_set)
    pair = [0, len(HOSTS) - 1]  # on two hosts, skipping those between
    if hvd.rank() in pair:
        process_set = hvd.add_process_set(pair, members_only=True, distinct=True)
        assert hvd.allgather_object(hvd.rank(), process_set=process_set) == pair
        hvd.remove_process_set(process_set)


def check_bytes() -> None:
    """Each byte leaves a host as often as the documentation of the algorithms says."""
    ranks, hosts = len(HOSTS), len(set(HOSTS))
    tensor = np.ones(MEGABYTES << 18, np.float32)
    sent = bytes_of_hosts("allreduce", tensor)
    assert sum(sent.values()) == 2 * (hosts - 1) * tensor.nbytes, sent
    for count in sent.values():
        assert abs(count - 2 * (hosts - 1) * tensor.nbytes // hosts) < tensor.nbytes // 100, sent
    half = bytes_of_hosts("compressed", tensor)
    assert {host: 2 * count for host, count in half.items()} == sent, (half, sent)
    sent = bytes_of_hosts("broadcast", tensor)
    expected = dict.fromkeys(HOSTS, 0) | {HOSTS[0]: (hosts - 1) * tensor.nbytes}
    assert sent == expected, sent
    sent = bytes_of_hosts("allgather", tensor)
    for host, members in Counter(HOSTS).items():
        counts = 8 * members * (ranks - members)  # of rows
        assert sent[host] == members * (hosts - 1) * tensor.nbytes + counts, sent


def main() -> None:
    """Check everything on the global set, and the bits on a set with some ranks of each host."""
    some = list(range(1, len(HOSTS)))
    os.environ["HOROSCALE_DYNAMIC_PROCESS_SETS"] = "1"
    hvd.init(process_sets=[part := hvd.ProcessSet(some)])
    for check in (check_bits, check_compression, check_one_hop):
        check(hvd.global_process_set, list(range(len(HOSTS))))
        if hvd.rank() in some:
            check(part, some)
    check_kinds()
    check_bytes()
    hvd.shutdown()


if __name__ == "__main__":
    main()
