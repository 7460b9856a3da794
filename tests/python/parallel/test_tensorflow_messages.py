"""Messages of the TensorFlow binding: send, recv, batches and gradients, eager and in graphs."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

tf = pytest.importorskip("tensorflow")

from support.reference import DTYPES  # noqa: E402
from support.tensorflow_reference import call, check, values  # noqa: E402

import horoscale.tensorflow as hvd  # noqa: E402

MODES = pytest.mark.parametrize("mode", ["eager", "graph"])


@pytest.fixture
def tag(name: str) -> Iterator[int]:
    """A set for this test, which all ranks leave together, so that failures can't affect others."""
    yield zlib.crc32(name.encode()) << 8
    hvd.barrier()


def to_the_next(out: tf.Tensor, like: tf.Tensor, tag: int) -> tf.Tensor:
    """Send to the next rank and return the tensor from the previous one."""
    size = hvd.size()
    zero, result = hvd.batch(
        [
            hvd.P2POp(hvd.send, out, (hvd.rank() + 1) % size, tag),
            hvd.P2POp(hvd.recv, like, (hvd.rank() - 1) % size, tag),
        ]
    )
    assert zero.shape == []
    assert result.shape == like.shape
    return result


def before() -> int:
    return (hvd.rank() - 1) % hvd.size()


@pytest.mark.parametrize("dtype", [*DTYPES, "uint32", "uint64"])
@MODES
def test_all_types(dtype: str, mode: str, tag: int) -> None:
    kind = "int64" if dtype in ("uint32", "uint64") else dtype
    for shape in ((0,), (3, 1), (7001, 10)):
        out, wanted = (tf.cast(values(kind, shape, r), dtype) for r in (hvd.rank(), before()))
        result = call(mode, lambda x: to_the_next(x, tf.zeros_like(x), tag), out)
        assert result.dtype == out.dtype
        check(result, wanted)


@pytest.mark.usefixtures("need_ranks")
@MODES
def test_in_the_order_of_the_program(mode: str, tag: int) -> None:
    """Large and small messages of one tag; the results of the sends are unused."""
    sizes = (5, 30_000, 1, 20_000)

    def sends(x: tf.Tensor) -> tf.Tensor:
        for i, n in enumerate(sizes):
            hvd.send(tf.fill([n], x + float(i)), 1, tag)
        return x

    def receives(x: tf.Tensor) -> list[tf.Tensor]:
        return [hvd.recv(tf.TensorSpec([n], tf.float32), 0, tag) for n in sizes]

    if hvd.rank() == 0:
        call(mode, sends, tf.constant(7.0))
    elif hvd.rank() == 1:
        for i, result in enumerate(call(mode, receives, tf.constant(0.0))):
            check(result, tf.fill([sizes[i]], 7.0 + i).numpy())


@pytest.mark.usefixtures("need_ranks")
@MODES
def test_of_any_rank(mode: str, tag: int) -> None:
    if hvd.rank() != 0:
        call(mode, lambda x: hvd.send(x, 0, tag), tf.fill([40_000], hvd.rank()))
        return
    sources = []
    like = tf.TensorSpec([40_000], tf.int32)
    for _ in range(1, hvd.size()):
        # Not as an argument of the function, because TensorFlow would convert it to a tensor.
        tensor, source = call(mode, lambda: hvd.recv_any(like, tag))
        check(tensor, tf.fill([40_000], source).numpy())
        sources.append(int(source))
    assert sorted(sources) == list(range(1, hvd.size()))


@pytest.mark.usefixtures("need_ranks")
@MODES
@pytest.mark.parametrize("n", [5, 50_000])
def test_gradients_go_back(mode: str, n: int, tag: int) -> None:
    """f(x) on rank 0, g of that on rank 1: the gradient of x is that of g(f(x))."""
    start = values("float64", n, 7)

    def first(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            zero = hvd.send(x * x, 1, tag)
        return tape.gradient(zero, x)

    def second(like: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(like)
            received = hvd.recv(like, 0, tag)
            loss = tf.reduce_sum(received * received * received)
        return received, tape.gradient(loss, like)

    if hvd.rank() == 0:
        check(call(mode, first, start), (6 * start**5).numpy(), exact=False)
    elif hvd.rank() == 1:
        received, gradient = call(mode, second, tf.zeros_like(start))
        check(received, (start * start).numpy())
        check(gradient, (3 * received * received).numpy(), exact=False)


@MODES
def test_gradients_of_a_batch(mode: str, tag: int) -> None:
    """In a ring: each rank squares its tensor's copy on the next one."""
    n = 30_000
    own, like = values("float32", n, hvd.rank()), tf.zeros([n])

    def step(x: tf.Tensor, like: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, like])
            received = to_the_next(x, like, tag)
            loss = tf.reduce_sum(received * received * float(hvd.rank() + 1))
        return tape.gradient(loss, [x, like])

    gradient, local = call(mode, step, own, like)
    place = (hvd.rank() + 1) % hvd.size() + 1
    check(gradient, (2.0 * own * float(place)).numpy(), exact=False)
    check(local, (2.0 * values("float32", n, before()) * float(hvd.rank() + 1)).numpy())


@pytest.mark.usefixtures("need_ranks")
@MODES
def test_a_mismatch_concerns_two_ranks_alone(mode: str, tag: int) -> None:
    if hvd.rank() == 0:
        with pytest.raises(tf.errors.FailedPreconditionError, match="rank 1 receives 29999"):
            call(mode, lambda x: hvd.send(x, 1, tag), tf.zeros([30_000]))
    elif hvd.rank() == 1:
        with pytest.raises(tf.errors.FailedPreconditionError, match="30000 elements of float32"):
            call(mode, lambda x: hvd.recv(x, 0, tag), tf.zeros([29_999]))
    check(hvd.allreduce(tf.ones([3]), op=hvd.Sum), tf.fill([3], float(hvd.size())).numpy())


def test_objects(tag: int) -> None:
    if hvd.rank() % 2 == 0 and hvd.rank() + 1 < hvd.size():
        hvd.send_object({"rank": hvd.rank()}, hvd.rank() + 1, tag)
    if hvd.rank() % 2 == 1:
        assert hvd.recv_object(hvd.rank() - 1, tag) == {"rank": hvd.rank() - 1}


def test_wrong_arguments(tag: int) -> None:
    x = tf.zeros([3])
    with pytest.raises(ValueError, match="dst="):
        hvd.send(x, hvd.size(), tag)
    with pytest.raises(ValueError, match="tag=-1"):
        hvd.recv(x, 0, -1)
    with pytest.raises(ValueError, match="does not define the whole shape"):
        hvd.recv(tf.TensorSpec([None], tf.float32), 0, tag)
    with pytest.raises(TypeError, match="P2POp"):
        hvd.batch([(hvd.send, x, 0)])
    with pytest.raises(ValueError, match="needs a peer"):
        hvd.batch([hvd.P2POp(hvd.send, x)])
    with pytest.raises(ValueError, match="none of send"):
        hvd.batch([hvd.P2POp(print, x, 0)])
    with pytest.raises(ValueError, match="peer=5"):
        hvd.batch([hvd.P2POp(hvd.recv_any, x, 5)])
    with pytest.raises(TypeError, match="src=None is not a rank: recv_any"):
        hvd.recv(x, None, tag)
    with pytest.raises(TypeError, match="dst=None"):
        hvd.send(x, None, tag)
    with pytest.raises(ValueError, match="tag="):
        hvd.send(x, 0, 2**62)
    with pytest.raises(TypeError, match="float"):
        hvd.send(x, 0, 1.0)
    with pytest.raises(TypeError, match="process_set="):
        hvd.send(x, 0, tag, None)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not registered"):
        hvd.recv_any(x, tag, hvd.ProcessSet([0]))
    with pytest.raises(NotImplementedError):
        hvd.send(tf.constant("text"), 0, tag)
    assert hvd.batch([]) == []
