"""The runtime's view of tensors: an address, an element type and a shape."""

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
if hasattr(torch, "uint16"):  # since PyTorch 2.3
    _DATA_TYPES[torch.uint16] = DataType.UINT16
_DTYPES = {int(number): dtype for dtype, number in _DATA_TYPES.items()}

_MOST_DIMENSIONS = 64  # the runtime's limit
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)  # subclasses may store anything


def data_type(dtype: torch.dtype) -> DataType:
    """Return the runtime's data type for a dtype. Raises UnsupportedError if there is none."""
    try:
        return _DATA_TYPES[dtype]
    except KeyError:
        known = ", ".join(str(d).removeprefix("torch.") for d in _DATA_TYPES)
        message = f"horoscale does not support tensors of {dtype}. Supported: {known}"
        raise UnsupportedError(message) from None


def dtype_of(number: int) -> torch.dtype:
    """Return the dtype with this number: the inverse of data_type()."""
    return _DTYPES[number]


def knows(dtype: torch.dtype) -> bool:
    """Return whether the runtime supports a dtype."""
    return dtype in _DATA_TYPES


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's memory holds its values in order, and autograd tracks it."""
    return (
        type(tensor) in _PLAIN_TYPES
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
    )


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values in plain contiguous memory, without a copy if possible.

    Raises ValueError for a tensor without such memory, UnsupportedError for a device without a
    backend.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(
            f"a tensor with layout {tensor.layout} cannot be sent directly: "
            "use sparse_allreduce_async()"
        )
    if isinstance(tensor, UninitializedTensorMixin):
        raise ValueError("a lazy parameter has no values yet: run one forward pass first")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise UnsupportedError(
            f"the tensor is on {tensor.device}, and horoscale has no backend for "
            f"{tensor.device.type} tensors: move it to the CPU first"
        )
    # Conjugate and negated views are flags on another tensor's memory.
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def need_writable(tensor: object) -> torch.Tensor:
    """Return the destination of a receive, if each of its elements can be written separately.

    Raises TypeError if it is not a tensor, ValueError if elements share memory, as after expand().
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a message is received into a torch.Tensor, not a {type(tensor).__name__}")
    if tensor.layout is torch.strided and tensor.numel() > 1:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        if any(extent > 1 and step == 0 for extent, step in steps):
            raise ValueError(
                "cannot receive a message into a tensor whose elements share memory: clone() it"
            )
    return tensor


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous view if there is one, so that channels_last needs no copy.

    The view's dimensions are in memory order. If that differs from the tensor's own order,
    dimensions of size one are appended, whose number identifies the order. Ranks whose tensors have
    different memory orders therefore have different shapes and raise MismatchError, instead of
    reducing unrelated elements.

    A tensor with gaps, or with an order whose number is too large (possible from 5 dimensions on),
    is returned unchanged. Its rank copies the elements by index, which other ranks do not notice.
    """
    if tensor.is_contiguous():
        return tensor
    strides, shape = tensor.stride(), tensor.shape
    # Dimensions of size one may have any stride and any position.
    single = [one for one in range(tensor.dim()) if shape[one] == 1]
    order = sorted(set(range(tensor.dim())).difference(single), key=lambda one: -strides[one])
    number = 0  # index of this order among all orders; 0 is the tensor's own
    for place, one in enumerate(order):
        number = number * (len(order) - place) + sum(later < one for later in order[place:])
    view = tensor.permute(single + order)
    if not view.is_contiguous() or view.dim() + number > _MOST_DIMENSIONS:
        return tensor
    return view.view(*view.shape, *[1] * number)


def room_for(tensor: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized tensor for a contiguous tensor's result, without autograd history."""
    return torch.empty_like(tensor)  # keeps the strides


def device_of(tensors: Sequence[torch.Tensor]) -> Device | None:
    """Return the device of an operation's tensors, and the stream on which they are computed.

    None means host memory. Raises ValueError if the tensors are not all in the same place.
    """
    first = tensors[0].device
    if any(tensor.device != first for tensor in tensors):
        places = ", ".join(sorted({str(tensor.device) for tensor in tensors}))
        raise ValueError(f"the tensors of one operation must be on one device, not on {places}")
    return None if first.type == "cpu" else Device(first.index, current_stream(first.index))


def current_stream(cuda_device: int) -> int:
    """Return the address of this thread's current stream of a device."""
    return int(torch.cuda.current_stream(cuda_device).cuda_stream)


def argument(source: torch.Tensor, target: torch.Tensor | None) -> TensorArg:
    """Describe an operation's input and output. The library allocates an output of None."""
    out = 0 if target is None else target.data_ptr()
    return TensorArg(source.data_ptr(), out, data_type(source.dtype), tuple(source.shape))


def need_room(out: object, rows: int | None, like: torch.Tensor, operation: str) -> torch.Tensor:
    """Return `out` if a result with `rows` rows (None: any) like `like` can be written to it.

    `operation` comes from titled(). Raises ValueError if `out` is not a tensor, has a wrong dtype,
    device or shape, is not contiguous, or requires a gradient.
    """
    if not isinstance(out, torch.Tensor):
        raise ValueError(f"out= of {operation} must be a torch.Tensor, not {type(out).__name__}")
    if out.requires_grad:
        raise ValueError(f"out= of {operation} must not require grad")
    if out.layout != torch.strided or not out.is_contiguous() or out.is_conj() or out.is_neg():
        raise ValueError(f"out= of {operation} must be contiguous")
    if out.dtype != like.dtype:
        raise ValueError(
            f"out= has dtype {out.dtype}, but the result of {operation} has {like.dtype}"
        )
    if out.device != like.device:
        raise ValueError(f"out= is on {out.device}, but the result of {operation} on {like.device}")
    check_out(out.shape, rows, like.shape[1:], operation)
    return out


def gathered_argument(source: torch.Tensor, out: torch.Tensor | None) -> TensorArg:
    """Describe the input of an operation whose result may have any number of rows.

    On a device the library allocates the result in any case.
    """
    described = argument(source, None)
    if out is None or not out.is_cpu:
        return described
    # An empty tensor has a null address, but the library needs a nonzero one. It writes nothing
    # there.
    return described._replace(out_ptr=out.data_ptr() or 1, out_rows=out.shape[0])


def adopt(buffer: OwnedBuffer, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return memory of the library as a tensor, which keeps it alive, without a copy."""
    if buffer.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer.buffer, dtype=dtype).view(shape)


def adopt_on_device(
    buffer: DeviceBuffer, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    """Return device memory of the library as a tensor, like adopt()."""
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
    """Complete an in-place operation on a plain tensor, given its properties at the start."""
    if tensor.data_ptr() == address and tensor.dtype is dtype:
        increment_version(tensor)
        return tensor
    # The tensor's storage was replaced meanwhile.
    result = torch.empty(0, dtype=dtype)
    offset = (address - memory.data_ptr()) // result.element_size()
    return write_back(tensor, result.set_(memory, offset, shape))  # type: ignore[call-overload]


def write_back(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Complete an in-place operation. `result` was computed in the memory from in_memory()."""
    if result.data_ptr() != tensor.data_ptr() or result.stride() != tensor.stride():
        with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
            tensor.copy_(result)
    elif not tensor.is_inference():
        # Tells autograd that saved values may have been overwritten.
        increment_version(tensor)
    return tensor
