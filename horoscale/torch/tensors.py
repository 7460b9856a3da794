"""Tensors as the runtime sees them: an address, an element type, a shape."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.graph import increment_version
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from horoscale._core import DataType, Device, DeviceBuffer, OwnedBuffer, TensorArg, UnsupportedError
from horoscale.common.arguments import check_out

_DATA_TYPES: dict[torch.dtype, DataType] = {
    torch.uint8: DataType.UINT8,
    torch.int8: DataType.INT8,
    torch.int16: DataType.INT16,
    torch.int32: DataType.INT32,
    torch.int64: DataType.INT64,
    torch.float16: DataType.FLOAT16,
    torch.bfloat16: DataType.BFLOAT16,
    torch.float32: DataType.FLOAT32,
    torch.float64: DataType.FLOAT64,
    torch.bool: DataType.BOOL,
    torch.complex64: DataType.COMPLEX64,
    torch.complex128: DataType.COMPLEX128,
}
if hasattr(torch, "uint16"):  # from PyTorch 2.3 on
    _DATA_TYPES[torch.uint16] = DataType.UINT16
_DTYPES = {int(number): dtype for dtype, number in _DATA_TYPES.items()}

_MOST_DIMENSIONS = 64  # of a tensor's shape, to the runtime
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)  # subclasses may hold anything


def data_type(dtype: torch.dtype) -> DataType:
    """Return the runtime's name of an element type; raise UnsupportedError if it has none."""
    try:
        return _DATA_TYPES[dtype]
    except KeyError:
        known = ", ".join(str(d).removeprefix("torch.") for d in _DATA_TYPES)
        message = f"horoscale can't move tensors of {dtype}; it can: {known}"
        raise UnsupportedError(message) from None


def dtype_of(number: int) -> torch.dtype:
    """Return the dtype that data_type() gives this number."""
    return _DTYPES[number]


def knows(dtype: torch.dtype) -> bool:
    """Return whether the runtime has an element type for a dtype."""
    return dtype in _DATA_TYPES


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's own memory holds its values, in order, and autograd follows it."""
    return (
        type(tensor) in _PLAIN_TYPES
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
    )


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor in plain contiguous memory: the tensor's own where it can be.

    Raises ValueError for what has no such memory, UnsupportedError for devices without a backend.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(
            f"a tensor of layout {tensor.layout} can't be sent as it is: "
            "see sparse_allreduce_async()"
        )
    if isinstance(tensor, UninitializedTensorMixin):
        raise ValueError("a lazy parameter has no values yet: run one forward pass first")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise UnsupportedError(
            f"the tensor is on {tensor.device}, and horoscale has no backend for "
            f"{tensor.device.type} tensors: move it to the CPU first"
        )
    # Conjugate and negated views are flags on somebody else's memory.
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def need_writable(tensor: object) -> torch.Tensor:
    """Return what is received into if it is a tensor whose elements can all be set, or raise.

    Raises TypeError for what is no tensor, ValueError for one that has elements in common memory,
    as expand() makes them.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a message is received into a torch.Tensor, not a {type(tensor).__name__}")
    if tensor.layout is torch.strided and tensor.numel() > 1:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        if any(extent > 1 and step == 0 for extent, step in steps):
            raise ValueError(
                "a message can't be received into a tensor whose elements share memory: clone() it"
            )
    return tensor


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view that is contiguous where there is one: channels_last needs no copy then.

    It has the dimensions in the order of memory and, unless that is their own, dimensions of one
    element after them, whose number stands for the order. Ranks whose tensors lie in different
    orders thus have different shapes and get a MismatchError, instead of sums of elements that
    don't belong together.

    A tensor with gaps, or in an order whose number is too large (from 5 dimensions on), is returned
    as it is: who sends it copies its elements by their indices, which no other rank must know.
    """
    if tensor.is_contiguous():
        return tensor
    strides, shape = tensor.stride(), tensor.shape
    # Dimensions of one element may have any stride, and lie anywhere.
    single = [one for one in range(tensor.dim()) if shape[one] == 1]
    order = sorted(set(range(tensor.dim())).difference(single), key=lambda one: -strides[one])
    number = 0  # of the order among all orders; 0 is their own
    for place, one in enumerate(order):
        number = number * (len(order) - place) + sum(later < one for later in order[place:])
    view = tensor.permute(single + order)
    if not view.is_contiguous() or view.dim() + number > _MOST_DIMENSIONS:
        return tensor
    return view.view(*view.shape, *[1] * number)


def room_for(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor for what a contiguous one will become. It has no history."""
    return torch.empty_like(tensor)  # with the strides of its argument


def device_of(tensors: Sequence[torch.Tensor]) -> Device | None:
    """Return where the tensors of one operation are, and the stream that computes them.

    None is the host's memory. Raises ValueError if they are not all in one place.
    """
    first = tensors[0].device
    if any(tensor.device != first for tensor in tensors):
        places = ", ".join(sorted({str(tensor.device) for tensor in tensors}))
        raise ValueError(f"the tensors of one operation are on several devices: {places}")
    return None if first.type == "cpu" else Device(first.index, current_stream(first.index))


def current_stream(cuda_device: int) -> int:
    """Return the address of this thread's current stream of a device."""
    return int(torch.cuda.current_stream(cuda_device).cuda_stream)


def argument(source: torch.Tensor, target: torch.Tensor | None) -> TensorArg:
    """Describe an operation's input and its output; None: allocated by the library."""
    out = 0 if target is None else target.data_ptr()
    return TensorArg(source.data_ptr(), out, data_type(source.dtype), tuple(source.shape))


def need_room(out: object, rows: int | None, like: torch.Tensor, operation: str) -> torch.Tensor:
    """Return out= if a result of so many rows (None: any) of `like` can be written there, or raise.

    `operation` is as titled() makes it. Raises ValueError for what is not a tensor, one of another
    dtype, device or shape, one that isn't contiguous, and one that autograd follows.
    """
    if not isinstance(out, torch.Tensor):
        raise ValueError(f"out= of {operation} takes a torch.Tensor, not {type(out).__name__}")
    if out.requires_grad:
        raise ValueError(f"out= of {operation} can't be a tensor that requires grad")
    if out.layout != torch.strided or not out.is_contiguous() or out.is_conj() or out.is_neg():
        raise ValueError(f"out= of {operation} needs a contiguous tensor")
    if out.dtype != like.dtype:
        raise ValueError(f"out= is of {out.dtype}, the result of {operation} of {like.dtype}")
    if out.device != like.device:
        raise ValueError(f"out= is on {out.device}, the result of {operation} on {like.device}")
    check_out(out.shape, rows, like.shape[1:], operation)
    return out


def gathered_argument(source: torch.Tensor, out: torch.Tensor | None) -> TensorArg:
    """Describe the input of an operation whose result may have any number of rows.

    On a device the library allocates the result in any case.
    """
    described = argument(source, None)
    if out is None or not out.is_cpu:
        return described
    # What has no elements has no address; nothing is written there.
    return described._replace(out_ptr=out.data_ptr() or 1, out_rows=out.shape[0])


def adopt(buffer: OwnedBuffer, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return memory of the library as a tensor, which keeps it alive. No copy."""
    if buffer.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer.buffer, dtype=dtype).view(shape)


def adopt_on_device(
    buffer: DeviceBuffer, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    """Return memory of a device that the library allocated as a tensor, as adopt() does."""
    if buffer.nbytes == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.as_tensor(buffer, device=device).view(dtype).view(shape)


def written(
    tensor: torch.Tensor,
    memory: torch.UntypedStorage,
    address: int,
    dtype: torch.dtype,
    shape: torch.Size,
) -> torch.Tensor:
    """Complete an operation in place on a plain tensor, which was this at the address."""
    if tensor.data_ptr() == address and tensor.dtype is dtype:
        increment_version(tensor)
        return tensor
    # It was given other memory meanwhile.
    result = torch.empty(0, dtype=dtype)
    offset = (address - memory.data_ptr()) // result.element_size()
    return write_back(tensor, result.set_(memory, offset, shape))  # type: ignore[call-overload]


def write_back(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Complete an operation in place: `result` was computed in the memory that in_memory() gave."""
    if result.data_ptr() != tensor.data_ptr() or result.stride() != tensor.stride():
        with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
            tensor.copy_(result)
    elif not tensor.is_inference():
        # Autograd must know that values it may have saved are gone.
        increment_version(tensor)
    return tensor
