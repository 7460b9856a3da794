"""No module of horoscale imports itself, and every binding exports the shared names."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import horoscale

os.environ.setdefault(  # importing Keras requires one of its backends
    "KERAS_BACKEND", "tensorflow" if importlib.util.find_spec("tensorflow") else "torch"
)

SHARED = """
    Adasum Average DuplicateNameError HorovodInternalError HostsUpdatedInterrupt Max Min
    MismatchError ProcessSet Product RankFailedError Sum add_process_set barrier ccl_built
    cross_rank cross_size cuda_built ddl_built get_process_set_ids_and_ranks global_process_set
    gloo_built gloo_enabled init is_homogeneous is_initialized local_rank local_size metrics
    mpi_built mpi_enabled mpi_threads_supported nccl_built rank remove_process_set rocm_built
    shutdown size start_timeline stop_timeline allgather_object broadcast_object
"""

OF_ARRAYS = """
    Compression allgather allgather_async allreduce allreduce_ allreduce_async allreduce_async_
    alltoall alltoall_async broadcast broadcast_ broadcast_async broadcast_async_ empty_shared
    empty_sharded
    grouped_allgather grouped_allgather_async grouped_allreduce grouped_allreduce_
    grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter
    grouped_reducescatter_async join poll reducescatter reducescatter_async synchronize
"""

OF_KERAS = """
    Compression DistributedOptimizer PartialDistributedOptimizer allgather allreduce broadcast
    broadcast_global_variables broadcast_variables callbacks elastic load_model reducescatter
"""

# By binding: its requirements, and the names that scripts find besides the shared ones.
BINDINGS = {
    "common": (None, "current_runtime join"),
    "numpy": (None, OF_ARRAYS),
    "torch": (
        "torch",
        OF_ARRAYS
        + """
        DistributedOptimizer SyncBatchNorm broadcast_optimizer_state broadcast_parameters elastic
        set_priority sparse_allreduce_async
        """,
    ),
    "tensorflow": (
        "tensorflow",
        """
        BroadcastGlobalVariablesHook Compression DistributedGradientTape DistributedOptimizer
        PartialDistributedGradientTape SyncBatchNormalization allgather allreduce alltoall
        broadcast broadcast_ broadcast_global_variables broadcast_object_fn broadcast_variables
        elastic grouped_allgather grouped_allreduce grouped_reducescatter join local_rank_op
        local_size_op process_set_included_op rank_op reducescatter set_priority size_op
        """,
    ),
    "keras": ("keras", OF_KERAS),
    "tensorflow.keras": ("tensorflow", OF_KERAS),
}


def sources() -> dict[str, Path]:
    [root] = map(Path, horoscale.__path__)
    modules = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        modules[".".join(part for part in parts if part != "__init__")] = path
    return modules


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the imports of a file, including those in functions: modules, and their names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((one.name, []) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield node.module or "", [one.name for one in node.names]


def test_imports_have_no_circle() -> None:
    modules = sources()
    assert "horoscale.torch.reductions" in modules
    needed: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = {
            f"{source}.{name}" if f"{source}.{name}" in modules else source
            for source, given in imports(path)
            for name in given or [""]
        }
        needed[module] = names & modules.keys() - {module}
    try:
        TopologicalSorter(needed).prepare()
    except CycleError as error:
        pytest.fail("a circle of imports: " + " <- ".join(error.args[1]))


@pytest.mark.parametrize("binding", BINDINGS)
def test_a_binding_has_its_names(binding: str) -> None:
    needed, own = BINDINGS[binding]
    if needed is not None:
        pytest.importorskip(needed)
    try:
        module = importlib.import_module(f"horoscale.{binding}")
    except ImportError as error:
        if "is for Keras with TensorFlow" in str(error):
            pytest.skip(str(error))
        raise
    exported = list(module.__all__)
    assert not {*SHARED.split(), *own.split()} - {*exported}
    assert len(set(exported)) == len(exported)
    assert not [name for name in exported if not hasattr(module, name)]
