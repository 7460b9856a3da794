"""Errors in TensorFlow: on one rank alone, or from contradictory calls."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import horoscale.numpy as arrays  # noqa: E402
import horoscale.tensorflow as hvd  # noqa: E402

MISMATCHES = {
    "shape": lambda name: hvd.allreduce(tf.ones([3 + hvd.rank()]), name=name),
    "dtype": lambda name: hvd.allreduce(
        tf.ones([3], tf.float32 if hvd.rank() else tf.float64), name=name
    ),
    "op": lambda name: hvd.allreduce(
        tf.ones([3]), op=hvd.Sum if hvd.rank() else hvd.Max, name=name
    ),
    "root": lambda name: hvd.broadcast(tf.ones([3]), int(hvd.rank() != 0), name=name),
    "allgather": lambda name: hvd.allgather(tf.ones([1, 3 + hvd.rank()]), name=name),
}


@pytest.mark.parametrize("kind", MISMATCHES)
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_mismatch(kind: str, mode: str, name: str, need_ranks: None) -> None:
    """Every rank's error contains the name and all ranks' arguments; the runtime continues."""
    run = MISMATCHES[kind]
    if mode == "graph":
        run = tf.function(run, autograph=False)
    with pytest.raises(tf.errors.FailedPreconditionError) as failure:
        run(name)
    assert name in str(failure.value)
    assert "rank 0" in str(failure.value)
    assert int(hvd.allreduce(tf.constant(1), op=hvd.Sum)) == hvd.size()


LOCAL = {
    "string": (lambda: hvd.allreduce(tf.constant("a")), "string"),
    "bool": (lambda: hvd.allreduce(tf.constant([True])), "bool"),
    "both": (lambda: hvd.allreduce(tf.ones([3]), average=True, op=hvd.Sum), "average="),
    "0-d": (lambda: hvd.allgather(tf.constant(1.0)), "0-d"),
    "0-d-scatter": (lambda: hvd.reducescatter(tf.constant(1.0)), "0-d"),
    "scatter-op": (lambda: hvd.reducescatter(tf.ones([3]), op=hvd.BitwiseOr), "BitwiseOr"),
    "scatter-splits": (
        lambda: hvd.reducescatter(tf.ones([hvd.size() + 1]), splits=[1] * hvd.size()),
        "covers",
    ),
    "0-d-gather": (lambda: hvd.gather(tf.constant(1.0), 0), "0-d"),
    "reduce-root": (lambda: hvd.reduce(tf.ones([3]), 99), "root_rank=99"),
    "root-splits": (lambda: hvd.scatter(tf.ones([1]), hvd.rank(), [9] * hvd.size()), "rows"),
    "root": (lambda: hvd.broadcast(tf.ones([3]), root_rank=99), "root_rank=99"),
    "splits": (lambda: hvd.alltoall(tf.ones([99]), [1] * 17), "17"),
    "splits-sum": (lambda: hvd.alltoall(tf.ones([1]), [9] * hvd.size()), "rows"),
    "empty": (lambda: hvd.grouped_allreduce([]), "at least one"),
    "set": (lambda: hvd.allreduce(tf.ones([3]), process_set=hvd.ProcessSet([0])), "registered"),
}


UNSUPPORTED = {
    "bool": (lambda: hvd.allreduce(tf.constant([True])), "bool"),
    "dtype": (lambda: hvd.allreduce(tf.constant("a")), "string"),
    "scatter-op": (lambda: hvd.reducescatter(tf.ones([3]), op=hvd.BitwiseOr), "BitwiseOr"),
    "scatter-adasum": (lambda: hvd.reducescatter(tf.ones([3]), op=hvd.Adasum), "Adasum"),
    "slices": (
        lambda: hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0])), op=hvd.Min),
        "IndexedSlices",
    ),
    "factor": (
        lambda: hvd.DistributedGradientTape(
            tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0
        ),
        "Average",
    ),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
@pytest.mark.parametrize("mode", ["eager", "graph", "autograph"])
def test_what_an_operation_can_not_have(kind: str, mode: str) -> None:
    """Programs for Horovod catch NotImplementedError, those for horoscale ValueError."""
    call, message = UNSUPPORTED[kind]
    if mode != "eager":
        call = tf.function(call, autograph=mode == "autograph")
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert isinstance(error.value, NotImplementedError)


@pytest.mark.parametrize("mode", ["eager", "graph", "autograph"])
def test_outside_of_the_process_set(mode: str, need_ranks: None) -> None:
    others = hvd.add_process_set(range(1, hvd.size()))
    if hvd.rank() == 0:
        x, own = tf.ones([4]), {"process_set": others}
        calls = [
            *(hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter, hvd.recv_any),
            *(lambda x, root=root, **own: hvd.reduce(x, root, **own) for root in (0, 1)),
            *(lambda x, root=root, **own: hvd.gather(x, root, **own) for root in (0, 1)),
            *(lambda x, root=root, **own: hvd.scatter(x, root, **own) for root in (0, 1)),
            *(lambda x, peer=peer, **own: hvd.send(x, peer, **own) for peer in (0, 1)),
            *(lambda x, peer=peer, **own: hvd.recv(x, peer, **own) for peer in (0, 1)),
            lambda x, **own: hvd.batch([hvd.P2POp(hvd.send, x, 0, **own)]),
        ]
        for call in calls:
            run = lambda call=call: call(x, **own)  # noqa: E731
            if mode != "eager":
                run = tf.function(run, autograph=mode == "autograph")
            with pytest.raises(tf.errors.InvalidArgumentError, match="does not belong") as error:
                run()
            assert isinstance(error.value, ValueError)
        for call in (lambda: hvd.send_object(1, 0, **own), lambda: hvd.recv_object(0, **own)):
            with pytest.raises(ValueError, match="does not belong"):
                call()
    assert hvd.remove_process_set(others)


def test_duplicate_name(name: str, need_ranks: None) -> None:
    """An error that the kernel detects while the call is pending: others are in the barrier."""
    if hvd.rank() == 0:
        handle = arrays.allreduce_async(np.ones(3, np.float32), op=hvd.Sum, name=name)
        with pytest.raises(hvd.DuplicateNameError, match="pending") as caught:
            hvd.allreduce(tf.ones([3]), op=hvd.Sum, name=name)
        assert isinstance(caught.value, tf.errors.InvalidArgumentError)
    hvd.barrier()
    if hvd.rank() != 0:
        handle = arrays.allreduce_async(np.ones(3, np.float32), op=hvd.Sum, name=name)
    assert arrays.synchronize(handle).tolist() == [hvd.size()] * 3


@pytest.mark.parametrize("kind", LOCAL)
def test_wrong_arguments(kind: str) -> None:
    """They raise on this rank without waiting for others."""
    call, message = LOCAL[kind]
    with pytest.raises(ValueError, match=message):
        call()


def test_splits_of_a_graph() -> None:
    """Errors that only the kernel can detect."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="negative"):
        tf.function(lambda x, splits: hvd.alltoall(x, splits))(
            tf.ones([9]), tf.fill([hvd.size()], -1)
        )


def test_xla_can_not_compile() -> None:
    """Direct calls fail when the function is traced; XLA detects nested ones."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="allreduce: use jit_compile=False"):
        tf.function(lambda x: hvd.allreduce(x), jit_compile=True)(tf.ones([3]))
    if hvd.size() > 1:  # XLA is slow
        return
    inner = tf.function(lambda x: hvd.allreduce(x))
    inner(tf.ones([3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="HoroscaleAllreduce"):
        tf.function(lambda x: inner(x), jit_compile=True)(tf.ones([3]))


def test_a_graph_outlives_its_job() -> None:
    run = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    assert float(run(1.0)) == hvd.size()
    hvd.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"hvd\.init\(\)"):
        run(1.0)
    hvd.init(process_sets="dynamic")
    assert float(run(1.0)) == hvd.size()


@pytest.mark.parametrize(
    "options",
    [
        {"op": hvd.Sum, "gradient_predivide_factor": 2.0},
        {"num_groups": 2, "groups": 2},
        {"groups": -1},
        {"compression": int},
        {"backward_passes_per_step": 0},
        {"process_set": hvd.ProcessSet([0])},
    ],
    ids=str,
)
def test_wrong_options(options: dict) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), **options)


def test_adasum_of_integers_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.allreduce(tf.ones([3], tf.int32), op=hvd.Adasum)
