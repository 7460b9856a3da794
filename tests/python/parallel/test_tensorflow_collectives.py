"""TensorFlow's collectives: every operation, type and mode against a reference."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from support.reference import OPS, defined  # noqa: E402
from support.tensorflow_reference import all_values, call, check, reduced  # noqa: E402

import horoscale.tensorflow as hvd  # noqa: E402

DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16")
DTYPES += ("float32", "float64", "bool", "complex64", "complex128")
MODES = pytest.mark.parametrize("mode", ["eager", "graph"])
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES)


def is_exact(dtype: str, op: str) -> bool:
    rounds = op == "Average" or (op == "Product" and "complex" in dtype)
    return not rounds or "int" in dtype


@EVERY_DTYPE
@MODES
def test_allreduce(dtype: str, mode: str, process_set: hvd.ProcessSet) -> None:
    if not process_set.included():
        return
    inputs = all_values(dtype, 1000)
    ops = [op for op in OPS if defined(dtype, op)]

    def run(x: tf.Tensor) -> list[tf.Tensor]:
        return [hvd.allreduce(x, op=getattr(hvd, op), process_set=process_set) for op in ops]

    for op, result in zip(ops, call(mode, run, inputs[hvd.rank()]), strict=True):
        expected = reduced([inputs[rank] for rank in process_set.ranks], op)
        check(result, expected, is_exact(dtype, op))


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@MODES
def test_what_is_only_moved(dtype: str, mode: str) -> None:
    """Types that the runtime doesn't know, with bits that mean something else in other types."""
    every = [tf.constant([[2**31 + rank], [rank]], dtype) for rank in range(hvd.size())]

    def run(x: tf.Tensor) -> tuple:
        return hvd.broadcast(x, 0), hvd.allgather(x), hvd.alltoall(tf.tile(x[:1], [hvd.size(), 1]))

    sent, gathered, dealt = call(mode, run, every[hvd.rank()])
    check(sent, every[0])
    check(gathered, np.concatenate(every))
    check(dealt, np.concatenate([one[:1] for one in every]))


@MODES
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "uint32", "int64", "uint64"])
def test_alltoall_with_splits_of_any_integer_type(dtype: str, mode: str) -> None:
    x = tf.range(hvd.size()) + 10 * hvd.rank()
    splits = tf.ones([hvd.size()], dtype)
    result, received = call(mode, lambda x: hvd.alltoall(x, splits), x)
    assert result.numpy().tolist() == [10 * rank + hvd.rank() for rank in range(hvd.size())]
    assert received.numpy().tolist() == [1] * hvd.size()
    # Must not be truncated to 32 bits, where this is 1.
    if dtype.endswith("64"):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="rows"):
            call(mode, lambda x: hvd.alltoall(x, splits * ((1 << 32) + 1)), x)


@EVERY_DTYPE
@MODES
def test_all_operations(dtype: str, mode: str, process_set: hvd.ProcessSet) -> None:
    """On one set: the collectives that move data, and Sum."""
    if not process_set.included():
        return
    ranks = process_set.ranks
    every = all_values(dtype, (12, 2))
    inputs = [every[rank] for rank in ranks]
    place, root = process_set.rank(), ranks[-1]
    splits = [i % 2 + 1 for i in range(len(ranks))]

    def run(x: tf.Tensor) -> tuple:
        return (
            hvd.allreduce(x, op=hvd.Sum, process_set=process_set),
            hvd.allgather(x[: hvd.rank()], process_set=process_set),
            hvd.broadcast(x, root, process_set=process_set),
            hvd.alltoall(x, splits, process_set=process_set),
            hvd.reducescatter(x, op=hvd.Sum, process_set=process_set),
            *hvd.grouped_allreduce([x, x[:1]], op=hvd.Sum, process_set=process_set),
            *hvd.grouped_allgather([x, x[:0]], process_set=process_set),
            *hvd.grouped_reducescatter([x, x[:1]], op=hvd.Sum, process_set=process_set),
        )

    total = reduced(inputs, "Sum")
    sums, gathered, sent, (dealt, received), rows, *grouped = call(mode, run, every[hvd.rank()])
    check(sums, total)
    check(gathered, np.concatenate([every[rank][:rank] for rank in ranks]))
    check(sent, every[root])
    start, end = sum(splits[:place]), sum(splits[: place + 1])
    check(dealt, np.concatenate([one[start:end] for one in inputs]))
    assert received.numpy().tolist() == [splits[place]] * len(ranks)
    own = np.array_split(total, len(ranks))[place]
    check(rows, own)
    check(grouped[0], total)
    check(grouped[1], total[:1])
    check(grouped[2], np.concatenate([one.numpy() for one in inputs]))
    assert grouped[3].shape == (0, 2)
    check(grouped[4], own)
    check(grouped[5], total[: int(place == 0)])


@MODES
@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_indexed_slices(mode: str, op: str) -> None:
    inputs = all_values("float32", (2, 3))

    def run(x: tf.Tensor) -> tf.Tensor:
        slices = tf.IndexedSlices(x, tf.constant([0, hvd.rank()]), dense_shape=[9, 3])
        return tf.convert_to_tensor(hvd.allreduce(slices, op=getattr(hvd, op)))

    expected = np.zeros((9, 3), "float32")
    for rank, one in enumerate(inputs):
        expected[0] += one[0]
        expected[rank] += one[1]
    expected /= hvd.size() if op == "Average" else 1
    check(call(mode, run, inputs[hvd.rank()]), expected, exact=False)


def test_indexed_slices_of_integers() -> None:
    """Averages are true divisions."""
    values = tf.constant([[4 * hvd.size(), -2 * hvd.size() - 1]])
    slices = tf.IndexedSlices(values, tf.constant([0]), dense_shape=[1, 2])
    average = hvd.allreduce(slices)
    assert average.values.dtype == tf.float64
    np.testing.assert_allclose(average.values, [[4.0, -2.0 - 1.0 / hvd.size()]] * hvd.size())
    small = tf.IndexedSlices(tf.cast(values, tf.int8), slices.indices, dense_shape=[1, 2])
    assert hvd.allreduce(small).values.dtype == tf.float32
    assert hvd.allreduce(slices, op=hvd.Sum).values.dtype == tf.int32
    halves = hvd.allreduce(slices, op=hvd.Sum, prescale_factor=0.5)
    assert halves.values.numpy()[0].tolist() == [2 * hvd.size(), int(-hvd.size() - 0.5)]


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression(compression: str) -> None:
    result = hvd.allreduce(
        tf.fill([3], 2.0), op=hvd.Sum, compression=getattr(hvd.Compression, compression)
    )
    check(result, np.full(3, 2.0 * hvd.size(), "float32"))


@MODES
def test_inputs_stay_as_they_are(mode: str) -> None:
    """A tensor without other readers is reduced in place; all others are unchanged."""
    variable = tf.Variable(tf.ones([300]))

    def run(x: tf.Tensor) -> list[tf.Tensor]:
        used = x * 2.0
        return [
            hvd.allreduce(variable, op=hvd.Sum),
            hvd.allreduce(used, op=hvd.Sum),
            *hvd.grouped_allreduce([used, used], op=hvd.Sum),
            hvd.broadcast(used + hvd.rank(), hvd.size() - 1),
            hvd.allreduce(x * 5.0, op=hvd.Sum),
            used,
            x,
            variable.read_value(),
        ]

    size = hvd.size()
    expected = [size, 2 * size, 2 * size, 2 * size, 2 + size - 1, 5 * size, 2, 1, 1]
    for result, value in zip(call(mode, run, tf.ones([300])), expected, strict=True):
        check(result, np.full(300, value, "float32"))


def test_scale_factors_are_doubles() -> None:
    x = tf.ones([2], tf.float64)
    result = hvd.allreduce(x, op=hvd.Sum, prescale_factor=1 / 3, postscale_factor=3.0)
    check(result, np.full(2, sum([1 / 3] * hvd.size()) * 3.0))


def test_static_shapes() -> None:
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, 5, 2])])
    def run(x: tf.Tensor) -> None:
        shapes.extend(
            one.shape.as_list()
            for one in (
                hvd.allreduce(x),
                hvd.allgather(x),
                hvd.broadcast(x, 0),
                hvd.alltoall(x),
                hvd.reducescatter(x),
                hvd.reducescatter(tf.ones([hvd.size() * 2, 3])),
            )
        )

    run.get_concrete_function()
    assert shapes == [[None, 5, 2]] * 5 + [[2, 3]]


def test_many_outstanding_in_different_order(name: str) -> None:
    """160 operations of one function, traced in a different order on every rank.

    Some of the jobs that run this have only one thread for operations
    (test_on_ranks_tensorflow.py).
    """
    order = np.random.default_rng(hvd.rank()).permutation(160)

    @tf.function
    def run(x: tf.Tensor) -> list[tf.Tensor]:
        results = {}
        for i in order:
            results[i] = hvd.allreduce(x + float(i), op=hvd.Sum, name=f"{name}.{i}")
        return [results[i] for i in range(160)]

    for _ in range(3):
        for i, result in enumerate(run(tf.ones([7]))):
            check(result, np.full(7, hvd.size() * (1.0 + i), "float32"))


def test_same_operation_in_a_loop() -> None:
    @tf.function
    def run() -> tf.Tensor:
        results = tf.TensorArray(tf.float32, 20)
        for i in tf.range(20):
            results = results.write(i, hvd.allreduce(tf.cast(i, tf.float32), op=hvd.Sum))
        return results.stack()

    check(run(), np.arange(20, dtype="float32") * hvd.size())


@MODES
def test_graph_values(mode: str) -> None:
    def run() -> list[tf.Tensor]:
        return [
            hvd.size_op(),
            hvd.rank_op(),
            hvd.local_size_op(),
            hvd.local_rank_op(),
            hvd.process_set_included_op(),
        ]

    expected = [hvd.size(), hvd.rank(), hvd.local_size(), hvd.local_rank(), 1]
    assert [int(one) for one in call(mode, run)] == expected


@MODES
def test_join(mode: str, need_ranks: None) -> None:
    """The remaining ranks average over all; allgather needs the joined rank."""
    if hvd.rank() == 0:
        last = call(mode, hvd.join)
    else:
        for _ in range(3):
            average = np.full(2, np.float32(5.0 * (hvd.size() - 1)) / np.float32(hvd.size()))
            check(hvd.allreduce(tf.fill([2], 5.0)), average)
        with pytest.raises(tf.errors.UnknownError, match="rank 0, which called join"):
            call(mode, lambda: hvd.allgather(tf.fill([2], 5.0)))
        last = call(mode, hvd.join)
    assert 0 <= int(last) < hvd.size()
    hvd.barrier()


def test_variables_and_objects() -> None:
    variables = [
        tf.Variable(tf.fill([3], float(hvd.rank()))),
        tf.Variable(tf.fill([2], tf.cast(hvd.rank() + 5, tf.uint32))),
    ]
    hvd.broadcast_variables(variables, root_rank=hvd.size() - 1)
    last = hvd.size() - 1
    check(variables[0].read_value(), np.full(3, last, "float32"))
    check(variables[1].read_value(), np.full(2, last + 5, "uint32"))
    assert hvd.broadcast_object({"rank": hvd.rank()}, last) == {"rank": last}
    assert hvd.broadcast_object_fn(root_rank=0)(hvd.rank()) == 0
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
