"""Helpers for use under torch.compile."""

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


# True while the compiler traces a function, False while the function runs. Cheaper than
# torch.compiler.is_compiling(). PyTorch before 2.3 has neither.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", _never)


def outside_graph(function: Function) -> Function:
    """Exclude a function, and all functions that it calls, from compilation.

    A call from compiled code breaks the graph, and the function runs eagerly.
    @torch.compiler.disable does the same, but adds a slow wrapper to every call and imports the
    compiler even in programs that do not use it.
    """
    if set_code_exec_strategy is not None:
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        alone = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
        set_code_exec_strategy(function.__code__, alone)
    return function
