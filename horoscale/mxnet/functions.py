"""Broadcast of parameters, so that all ranks start training with the same values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict

from horoscale.common.arguments import check_root
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.mxnet.movement import broadcast_


def broadcast_parameters(
    params: Any,
    root_rank: int = 0,
    prefix: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Broadcast the root's parameters to all ranks.

    Parameters with unknown shapes are broadcast when they are initialized, in the first forward
    pass.

    Args:
        params: a dict of NDArrays or Gluon parameters, such as module.get_params()[0] or
            net.collect_params(). Keys are strings or integers, the same on all ranks.
        root_rank: the global rank of the sender.
        prefix: a prefix for the names of the broadcasts, to distinguish dicts with equal keys.
        process_set: the ranks that take part.

    Raises:
        ValueError: `params` is not a dict, two of its keys are equal as strings, the root is
            invalid, or hvd.init() was not called.
        MXNetError: raised when the parameters are used; as in broadcast().
    """
    if not isinstance(params, Mapping | ParameterDict):
        raise ValueError(f"broadcast_parameters() takes a dict, not a {type(params).__name__}")
    check_root(root_rank, process_set)
    named = {f"{prefix or ''}{key}": one for key, one in params.items()}
    if len(named) != len(list(params.keys())):
        raise ValueError("two keys of the parameters are the same as strings")
    for name, one in sorted(named.items()):
        if not isinstance(one, Parameter):
            broadcast_(one, root_rank, name=f"parameter.{name}", process_set=process_set)
            continue
        try:
            _broadcast_parameter(one, root_rank, name, process_set)
        except DeferredInitializationError:
            _broadcast_when_initialized(one, root_rank, name, process_set)


def _broadcast_parameter(
    parameter: Any, root_rank: int, name: str, process_set: ProcessSet
) -> None:
    copies = parameter.list_data()
    with mx.autograd.pause():
        broadcast_(copies[0], root_rank, name=f"parameter.{name}", process_set=process_set)
        for other in copies[1:]:
            copies[0].copyto(other)


def _broadcast_when_initialized(
    parameter: Any, root_rank: int, name: str, process_set: ProcessSet
) -> None:
    initialize = parameter._init_impl

    def initialize_and_broadcast(self: Any, data: Any, ctx_list: Any) -> None:
        initialize(data, ctx_list)
        self._init_impl = initialize  # only once
        _broadcast_parameter(self, root_rank, name, process_set)

    parameter._init_impl = MethodType(initialize_and_broadcast, parameter)
