"""What code of this package needs to know of torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

try:
    from torch._C._dynamo.eval_frame import (
        _FrameAction,
        _FrameExecStrategy,
        set_code_exec_strategy,
    )
except ImportError:
    set_code_exec_strategy = None  # type: ignore[assignment]

Function = TypeVar("Function", bound=Callable[..., Any])


def _never() -> bool:
    return False


# True to the compiler when it follows a function; False when the function runs. It costs less than
# torch.compiler.is_compiling(). PyTorch before 2.3 has neither.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", _never)


def outside_graph(function: Function) -> Function:
    """Have the compiler leave a function alone, with all that it calls.

    Where compiled code calls it the graph ends, the function runs as usual, and another graph
    begins. That is what @torch.compiler.disable does, which puts a slow call in front of the
    function, though, and imports the compiler where nobody compiles.
    """
    if set_code_exec_strategy is not None:
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        alone = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
        set_code_exec_strategy(function.__code__, alone)
    return function
