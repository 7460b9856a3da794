"""Files for offloaded data, and activations that are written to them: in one process."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from horoscale.torch.parallel.offload import (  # noqa: E402
    DiskOffload,
    HostOffload,
    OffloadError,
    Store,
    offload_activations,
)
from horoscale.torch.parallel.offload import store as stores  # noqa: E402
from horoscale.torch.parallel.offload.direct import (  # noqa: E402
    ALIGNMENT,
    DirectFile,
    aligned_memory,
    bytes_of,
)


def test_the_file_is_private_and_has_no_name(tmp_path: Path) -> None:
    """So that a process leaves nothing behind, however it ends."""
    file = DirectFile(tmp_path)
    status = os.fstat(file._file)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_nlink == 0
    assert not list(tmp_path.iterdir())
    descriptor = file._file
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("is_direct", [True, False])
def test_what_is_written_is_read(
    is_direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directly, through the page cache, and through mapped memory."""
    if not is_direct:
        monkeypatch.setattr(DirectFile, "_set_direct", lambda *_: False)
    monkeypatch.setattr(stores, "CHUNK_BYTES", 4 * ALIGNMENT)
    store = Store(tmp_path, 100)
    areas = [store.area(length, torch.float64) for length in (1, 5_000, 12_345)]
    assert all(bool((area.tensor == 0).all()) for area in areas)
    for area in areas:
        length = len(area.tensor)
        values = torch.arange(length + 1, dtype=torch.float64)[1:]  # unaligned
        store.write(area, 0, values).wait()
        assert torch.equal(area.tensor, values)
        area.tensor.mul_(2)
        found = torch.empty(length, dtype=torch.float64)
        store.read(area, 0, found).wait()
        assert torch.equal(found, 2 * values)
        memory = aligned_memory(length * 8).view(torch.float64)[:length]
        store.read(area, 0, memory.copy_(-values)).wait()
        assert torch.equal(memory, 2 * values)
    half = 4 * ALIGNMENT // 8
    found = torch.empty(100, dtype=torch.float64)
    store.read(areas[2], half, found).wait()
    assert torch.equal(found, areas[2].tensor[half : half + 100])
    assert store.file.is_direct in (is_direct, False)
    store.close()


def test_a_disk_of_another_alignment(tmp_path: Path) -> None:
    """If direct I/O is rejected late, the page cache is used."""
    file = DirectFile(tmp_path)
    if not file.is_direct:
        pytest.skip("no direct I/O here")
    offset = file.reserve(3 * ALIGNMENT)
    values = torch.arange(100, dtype=torch.uint8)  # of no aligned length
    file.write(bytes_of(values), offset)
    assert not file.is_direct
    found = torch.zeros_like(values)
    file.read(bytes_of(found), offset)
    assert torch.equal(found, values)


def test_a_disk_of_another_alignment_that_threads_find_out_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that failed while another thread disabled direct I/O is also retried."""
    file = DirectFile(tmp_path)
    file.is_direct = True
    offset = file.reserve(ALIGNMENT)
    write = os.pwritev
    refused = []

    def refuse_once(*arguments: Any) -> int:
        if not refused:
            refused.append(arguments)
            file.is_direct = file._set_direct(False)  # like another thread whose write was rejected
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return write(*arguments)

    monkeypatch.setattr(os, "pwritev", refuse_once)
    values = torch.arange(100, dtype=torch.uint8)
    file.write(bytes_of(values), offset)
    found = torch.zeros_like(values)
    file.read(bytes_of(found), offset)
    assert refused
    assert torch.equal(found, values)


def test_a_file_system_that_reserves_by_single_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like libc without fallocate(): bytes that can't be written directly."""
    file = DirectFile(tmp_path)
    file.is_direct = True
    reserve = os.posix_fallocate

    def refuse_directly(*arguments: int) -> None:
        if file.is_direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        reserve(*arguments)

    monkeypatch.setattr(os, "posix_fallocate", refuse_directly)
    file.reserve(ALIGNMENT)
    assert not file.is_direct
    assert os.fstat(file._file).st_size == ALIGNMENT


def test_a_transfer_that_goes_on() -> None:
    store = Store()
    area = store.area(10, torch.float32)
    area.tensor.fill_(3)
    found = torch.empty(10)
    seen = []
    store.read(area, 0, found).then(lambda: seen.append(float(found.sum()))).wait()
    assert seen == [30]
    nothing = store.read(area, 0, found[:0]).then(lambda: seen.append(0))
    assert seen == [30, 0]  # at once: no thread moves data
    nothing.wait()
    store.close()


def test_errors_name_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OffloadError, match=rf"can't offload to {tmp_path}/none: No such file"):
        DirectFile(tmp_path / "none")
    file = DirectFile(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OffloadError, match=rf"{tmp_path} is full: .* 2.0 MiB more .*are free"):
            file.reserve(2 << 20)
    file.reserve(ALIGNMENT)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        memory = aligned_memory(2 * ALIGNMENT)
        with pytest.raises(OffloadError, match=rf"{tmp_path} is full"):
            file.write(bytes_of(memory), 0)
    with pytest.raises(OffloadError, match="ends early"):
        file.read(bytes_of(memory), 0)


class Layers(nn.Sequential):
    """Layers that save transposed weights, views, gaps and tensors that others have saved."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(40, 80), nn.Tanh(), nn.Linear(80, 40), nn.GELU())

    def forward(self, x: Any) -> Any:
        for _ in range(3):
            x = x + super().forward(x)
        return (x[:, ::2] * x[:, 1::2]).square().mean()


def test_activations_on_a_disk_give_the_same_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horoscale.torch.parallel.offload.activations._MOST_PENDING", 40_000)
    torch.manual_seed(0)
    model = Layers()
    x = torch.randn(64, 40)
    model(x).backward()
    expected = [one.grad.clone() for one in model.parameters()]
    offload = offload_activations("disk", tmp_path, least_bytes=1)
    assert isinstance(offload, DiskOffload)
    sizes = []
    for repeat in range(3):
        model.zero_grad()
        with offload():
            loss = model(x)
            thrown_away = model(2 * x)
        del thrown_away
        loss.backward(retain_graph=repeat == 1)
        if repeat == 1:  # from existing storage again
            model.zero_grad()
            loss.backward()
        for one, gradient in zip(model.parameters(), expected, strict=True):
            assert torch.equal(one.grad, gradient)
        sizes.append(offload.file_bytes)
        del loss
    assert sizes == [sizes[0]] * 3  # the same places again
    assert not list(tmp_path.iterdir())


def test_activations_that_are_conjugated_or_negated_when_they_are_read(tmp_path: Path) -> None:
    x = torch.arange(99).mul(1 + 2j)
    w = torch.ones_like(x, requires_grad=True)
    offload = offload_activations("disk", tmp_path, least_bytes=1)
    with offload():
        loss = (x.conj() * w).real.sum()
    loss.backward()
    assert torch.equal(w.grad, x)
    v = torch.ones(99, requires_grad=True)
    with offload():
        loss = (x.conj().imag * v).sum()  # a view that has the negative bit
    loss.backward()
    assert torch.equal(v.grad, -x.imag)


def test_activations_of_the_cpu_stay_where_the_host_has_them() -> None:
    offload = offload_activations("cpu", least_bytes=1)
    assert isinstance(offload, HostOffload)
    x = torch.randn(8, 40, requires_grad=True)
    with offload():
        result = x.exp()
    assert result.grad_fn._saved_result.data_ptr() == result.data_ptr()
    result.sum().backward()
    assert torch.equal(x.grad, result.detach())
    with pytest.raises(ValueError, match='to=\'tape\': activations go to "disk" or to "cpu"'):
        offload_activations("tape")


def test_a_disk_that_is_full_ends_the_forward_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    offload = offload_activations("disk", tmp_path, least_bytes=1)
    monkeypatch.setattr(os, "posix_fallocate", full)
    x = torch.ones(99, requires_grad=True)
    with offload(), pytest.raises(OffloadError, match=f"{tmp_path} is full"):
        x.exp()
