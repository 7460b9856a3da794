"""Makes reading a parameter that has no memory at the moment an error instead of a crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

_NAME = "_horoscale_name"
# Methods that do not need the values.
_METHODS = {
    "__hash__", "__len__", "dim", "element_size", "get_device", "is_complex", "is_contiguous",
    "is_floating_point", "is_same_size", "is_shared", "is_signed", "ndimension", "nelement",
    "numel", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "size",
    "storage_offset", "stride", "untyped_storage",
}  # fmt: skip
# They take parameters only to identify gradients; hooks gather the parameters to compute with.
_FUNCTIONS = (torch.autograd.backward, torch.autograd.grad)
_VALUES = {"data", "T", "H", "mT", "mH", "real", "imag"}  # attributes that return values


class FreedParameter(nn.Parameter):
    """A parameter of a unit that is not gathered. Its shape and dtype are known, values are not."""

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """Return a text without values."""
        return f"FreedParameter({getattr(self, _NAME)}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run functions that need no values; raise RuntimeError for others."""
        if not _is_harmless(func):
            names = [getattr(one, _NAME) for one in args if isinstance(one, cls)] or ["a parameter"]
            raise RuntimeError(
                f"{names[0]} is not there: in stage 3 a parameter has memory in the forward and "
                "backward pass of its unit alone. Use it there, choose unit= so that it belongs to "
                "the module that uses it, or read it within par.gathered(model)"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def free(parameter: nn.Parameter, name: str) -> None:
    """Make reading a parameter an error. Parameters of subclasses are not changed."""
    if type(parameter) is nn.Parameter:
        setattr(parameter, _NAME, name)
        parameter.__class__ = FreedParameter


def restore(parameter: nn.Parameter) -> None:
    """Make a parameter readable again."""
    if type(parameter) is FreedParameter:
        parameter.__class__ = nn.Parameter  # type: ignore[assignment]


def _is_harmless(func: Callable[..., Any]) -> bool:
    kind = getattr(func, "__name__", "")
    if kind == "__get__":
        return getattr(func.__self__, "__name__", "") not in _VALUES  # type: ignore[attr-defined]
    return kind == "__set__" or kind in _METHODS or func in _FUNCTIONS
