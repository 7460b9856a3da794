"""Every public function of every binding takes process_set=, except those listed here."""

from __future__ import annotations

import importlib
import inspect
import os
from importlib.util import find_spec

import pytest

os.environ.setdefault("KERAS_BACKEND", "tensorflow" if find_spec("tensorflow") else "torch")

# They concern the job, a process, or an operation that already has its set.
OF_THE_JOB = {
    "batch",  # each of its messages has one
    *("init", "shutdown", "is_initialized", "is_homogeneous", "join", "metrics"),
    *("local_rank", "local_size", "cross_rank", "cross_size", "get_process_set_ids_and_ranks"),
    *("start_timeline", "stop_timeline", "empty_shared", "set_priority", "poll", "synchronize"),
    *("local_rank_op", "local_size_op", "ProcessSet", "Compression", "HostsUpdatedInterrupt"),
    *("mpi_threads_supported", "mpi_enabled", "gloo_enabled"),
}
# TensorFlow 1's, as in Horovod: for all ranks.
OF_OLD_GRAPHS = {
    *("broadcast_global_variables", "BroadcastGlobalVariablesHook"),
    "BroadcastGlobalVariablesCallback",
}
NEEDED = {"torch": "torch", "tensorflow": "tensorflow", "keras": "keras"}


@pytest.mark.parametrize("binding", ["numpy", "torch", "tensorflow", "keras"])
def test_every_operation_takes_a_process_set(binding: str) -> None:
    if binding in NEEDED:
        pytest.importorskip(NEEDED[binding])
    module = importlib.import_module(f"horoscale.{binding}")
    functions = {name: getattr(module, name) for name in module.__all__}
    without = set()
    for name, function in functions.items():
        of_the_job = name in OF_THE_JOB | OF_OLD_GRAPHS or name.endswith("_built")
        is_error = inspect.isclass(function) and issubclass(function, Exception)
        if of_the_job or is_error or not callable(function):
            continue
        # Functions that pass on their arguments are judged by the called function.
        parameters = inspect.signature(function).parameters
        passes_on = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        # Values in graphs are identified by the set's id, as in Horovod.
        if not passes_on and not {"process_set", "process_set_id"} & parameters.keys():
            without.add(name)
    assert not without
    assert {"allreduce", "allgather", "broadcast", "reducescatter"} <= functions.keys()
