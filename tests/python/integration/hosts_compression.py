"""Results of lossy compression, in a rank whose host is given by HOROSCALE_HOSTNAME.

Argument: the host of each rank, as one letter. HOROSCALE_PARTITION_BYTES may split the tensors.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np
import pytest
import torch
from small_training import model, same_everywhere, train

import horoscale.numpy as arrays
import horoscale.torch as hvd
from horoscale._core import OpKind, ReduceOp
from horoscale.numpy.reductions import Call, enqueue

HOSTS = sys.argv[1]
IS_ENCODED = len(set(HOSTS)) > 1
STEPS = 40
COMPRESSIONS = (
    hvd.Compression.int8,
    hvd.Compression.int4,
    hvd.Compression.onebit,
    hvd.Compression.topk(0.1),
)


class CustomCompressor(arrays.Compression.none):
    """One that runs in Python."""


def gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor of each rank."""
    return list(hvd.allgather(tensor[None]))


def relative(error: torch.Tensor, exact: torch.Tensor) -> float:
    """The norm of the error, relative to that of the exact result."""
    return float(error.norm() / exact.norm())


def check_sums() -> None:
    """Losses are made up later: the sum of many results is more accurate than a single one."""
    for compression in COMPRESSIONS:
        torch.manual_seed(hvd.rank())
        values = torch.randn(50_001)
        exact = torch.stack(gathered(values)).sum(0)
        total = torch.zeros(50_001)
        for step in range(STEPS):
            name = f"sum {compression}"
            result = hvd.allreduce(values, name=name, compression=compression, op=hvd.Sum)
            total += result
            if step == 0:
                first = relative(result - exact, exact)
        everybodys = gathered(total)
        assert all(torch.equal(one, total) for one in everybodys), compression
        last = relative(total / STEPS - exact, exact)
        assert (first > 0) == IS_ENCODED, (compression, first)
        assert last < max(first / 4, 1e-6), (compression, first, last)


def check_arrays() -> None:
    """The same call on arrays."""
    values = np.linspace(-1, 1, 3000, dtype=np.float32)
    compression = arrays.Compression.int8
    result = arrays.allreduce(values, name="array", compression=compression, op=arrays.Average)
    assert np.abs(result - values).max() < 0.02


def check_half_precision() -> None:
    """16-bit tensors are encoded, too."""
    for dtype in (torch.float16, torch.bfloat16):
        values = torch.randn(5000, generator=torch.Generator().manual_seed(5)).to(dtype)
        result = hvd.allreduce(values, name=f"half {dtype}", compression=hvd.Compression.int4)
        error = relative((result - values).float(), values.float())
        assert (error > 0.02) == IS_ENCODED, (dtype, error)
        assert error < 0.3, (dtype, error)


def distributed(network: torch.nn.Module, compression: Any, **options: Any) -> Any:
    """An optimizer with it."""
    return hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.2),
        named_parameters=network.named_parameters(),
        compression=compression,
        **options,
    )


def check_training() -> None:
    """Models learn as well as without it."""
    losses = []
    for compression in (hvd.Compression.none, *COMPRESSIONS, hvd.Compression.powersgd(4)):
        network = model()
        losses.append(train(distributed(network, compression), network, 120))
        assert same_everywhere(network), compression
    assert max(losses) < losses[0] * 1.2 + 0.01, losses


def check_state() -> None:
    """Residuals are part of the state: resumed training is identical."""
    network = model()
    optimizer = distributed(network, hvd.Compression.int4)
    train(optimizer, network, 5)
    weights = copy.deepcopy(network.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    assert "horoscale_residuals" in state
    train(optimizer, network, 3, seed=50)
    expected = copy.deepcopy(network.state_dict())

    def go_on(from_state: dict[str, Any]) -> bool:
        network.load_state_dict(weights)
        optimizer.load_state_dict(from_state)
        train(optimizer, network, 3, seed=50)
        found = network.state_dict()
        same = all(torch.equal(expected[name], found[name]) for name in expected)
        return bool(hvd.allreduce(torch.tensor(float(same)), op=hvd.Min))

    assert go_on(state)
    # Without them, or with another rank's, training continues, but differs.
    del state["horoscale_residuals"]
    assert go_on(state) != IS_ENCODED
    others = hvd.broadcast_object(optimizer.state_dict(), root_rank=0)
    assert go_on(others) != IS_ENCODED


def check_power_sgd() -> None:
    """Its state is part of the optimizer's, and resumed training is identical."""
    network = model()
    optimizer = distributed(network, hvd.Compression.powersgd(2))
    train(optimizer, network, 3)
    weights, state = copy.deepcopy((network.state_dict(), optimizer.state_dict()))
    train(optimizer, network, 2, seed=50)
    expected = copy.deepcopy(network.state_dict())
    network.load_state_dict(weights)
    optimizer.load_state_dict(state)
    train(optimizer, network, 2, seed=50)
    found = network.state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    with pytest.raises(ValueError, match="op=Average"):
        distributed(model(), hvd.Compression.powersgd(2), op=hvd.Sum)
    with pytest.raises(ValueError, match="DistributedOptimizer alone"):
        hvd.allreduce(torch.zeros(4), compression=hvd.Compression.powersgd(2))


def check_loss_scale() -> None:
    """Residuals of gradients with another scale are rescaled."""
    values = torch.randn(5000, generator=torch.Generator().manual_seed(hvd.rank()))
    network = torch.nn.Linear(50, 100, bias=False)
    optimizer = distributed(network, hvd.Compression.int4, op=hvd.Sum)
    other = distributed(model(), hvd.Compression.int8)
    exact = torch.stack(gathered(values)).sum(0)
    total = torch.zeros(5000)
    for step in range(STEPS):
        scale = 2.0 if STEPS // 4 <= step < STEPS * 3 // 4 else 1024.0
        if step == STEPS // 2:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer.set_loss_scale(2.0**-20)
            optimizer.load_state_dict(state)  # including the scale of its residuals
        optimizer.set_loss_scale(scale)
        other.set_loss_scale(scale)  # shares the residuals, which are not rescaled twice
        optimizer.zero_grad()
        (network.weight * (scale * values).reshape(100, 50)).sum().backward()
        optimizer.synchronize()
        total += network.weight.grad.flatten() / scale
        with optimizer.skip_synchronize():
            optimizer.step()
    assert relative(total / STEPS - exact, exact) < 0.02


def check_choice() -> None:
    """Vectors and embeddings are excluded; a table or a function can choose otherwise."""

    def bytes_before(compression: Any) -> int:
        network = torch.nn.ModuleDict(
            {"embedding": torch.nn.Embedding(64, 64), "linear": torch.nn.Linear(64, 64)}
        )
        before = encoded_bytes()
        optimizer = distributed(network, compression)
        network["linear"](network["embedding"](torch.arange(64))).sum().backward()
        optimizer.step()
        return encoded_bytes() - before

    int8 = hvd.Compression.int8
    matrix, vector = 4 * 64 * 64 * IS_ENCODED, 4 * 64 * IS_ENCODED
    assert everywhere(bytes_before(int8)) == matrix * hops()
    assert everywhere(bytes_before({"embedding.*": int8, "*.bias": int8})) == (
        (matrix + vector) * hops()
    )
    assert everywhere(bytes_before(lambda name, parameter: int8)) == (2 * matrix + vector) * hops()


def encoded_bytes() -> int:
    """The number of bytes that this rank has encoded."""
    encodings = hvd.metrics()["process_sets"]["0"]["encodings"]
    return sum(one["bytes_before"] for one in encodings.values())


def everywhere(number: int) -> int:
    """The sum over the ranks."""
    return int(hvd.allreduce(torch.tensor(number), op=hvd.Sum))


def hops() -> int:
    """How often all hosts together encode a tensor."""
    hosts = len(set(HOSTS))
    return hosts if hosts == 2 else hosts + 1


def check_metrics() -> None:
    """Metrics report the encoded bytes and the error; with a single host there are none."""
    encodings = hvd.metrics()["process_sets"]["0"]["encodings"]
    if not IS_ENCODED:
        assert encodings == {}
        return
    if encoded_bytes() == 0:
        return  # one host has more ranks than the others
    assert {"int8", "int4", "onebit", "topk"} == set(encodings)
    for name, ratio in (("int8", 66 / 256), ("int4", 34 / 256), ("onebit", 10 / 256)):
        one = encodings[name]
        assert one["calls"] > 0
        assert ratio <= one["bytes_after"] / one["bytes_before"] < 1.1 * ratio, (name, one)
    assert 0 < encodings["int8"]["relative_error"] < 0.02
    assert encodings["int8"]["relative_error"] < encodings["int4"]["relative_error"]


def check_scattered() -> None:
    """Reducescatter makes up for losses, too, with even and uneven splits, and for arrays."""
    size = hvd.size()
    for compression in COMPRESSIONS:
        for splits in (None, [rank + 1 for rank in range(size)]):
            values = np.random.default_rng(hvd.rank()).normal(size=(size * (size + 1) // 2, 999))
            values = values.astype(np.float32)
            exact = np.sum(arrays.allgather(values[None]), axis=0, dtype=np.float64)
            ends = np.cumsum(splits or [len(one) for one in np.array_split(exact, size)])
            begin = ends[hvd.rank() - 1] if hvd.rank() else 0
            own = exact[begin : ends[hvd.rank()]]
            total = np.zeros_like(own)
            errors = []
            for _ in range(STEPS):
                total += arrays.reducescatter(
                    values,
                    name=f"scattered {compression} {splits}",
                    op=arrays.Sum,
                    splits=splits,
                    compression=compression,
                )
                error = np.linalg.norm(total / (len(errors) + 1) - own) / np.linalg.norm(own)
                errors.append(error)
            assert (errors[0] > 1e-5) == IS_ENCODED, (compression, errors[0])
            assert errors[-1] < max(errors[0] / 4, 1e-5), (compression, errors)


def check_scattered_bits() -> None:
    """The bits of rows do not depend on what is fused, nor on the framework."""
    torch.manual_seed(hvd.rank())
    tensors = [torch.randn(9, 700), torch.randn(5001, 1), torch.randn(64, 64)]
    compression = hvd.Compression.int4
    for _ in range(3):
        group = hvd.grouped_reducescatter(tensors, name="fused", compression=compression)
        for number, (tensor, expected) in enumerate(zip(tensors, group, strict=True)):
            out = np.empty(expected.shape, np.float32)
            arrays.reducescatter(
                tensor.numpy(), name=f"alone {number}", compression=compression, out=out
            )
            assert np.array_equal(out, expected.numpy()), number


def check_errors() -> None:
    """No lossy encoding where residuals can't be kept."""
    values = [np.zeros(8, np.float32)]
    encoding = hvd.Compression.int8.encoding
    call = Call(ReduceOp.SUM, "reduced", 1.0, 1.0, hvd.global_process_set, 0, encoding)
    with pytest.raises(ValueError, match="int8 is an encoding for allreduce and reducescatter"):
        enqueue(OpKind.REDUCE, values, values, call, will_wait=True)
    with pytest.raises(ValueError, match="out= cannot be combined"):
        arrays.reducescatter(np.zeros(8), out=np.zeros(8), compression=CustomCompressor)


def main() -> None:
    """Run all checks."""
    hvd.init()
    torch.set_num_threads(1)
    check_sums()
    check_arrays()
    check_training()
    check_metrics()
    check_half_precision()
    check_state()
    check_power_sgd()
    check_loss_scale()
    check_choice()
    check_scattered()
    check_scattered_bits()
    check_errors()
    hvd.shutdown()


main()
