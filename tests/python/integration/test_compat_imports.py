"""`horoscalerun --compat` provides Horovod's module names."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from launcher_process import environment, run_launcher

from horoscale.runner.launch import COMPAT_DIRECTORY


def run_compat(program: str) -> subprocess.CompletedProcess[bytes]:
    return run_launcher("-np", 1, "--compat", sys.executable, "-c", program)


def printed(program: str) -> str:
    job = run_compat(program)
    assert job.returncode == 0, job.stderr.decode()
    return job.stdout.decode().removeprefix("[0]<stdout>:").rstrip("\n")


def test_horovod_is_not_served_without_the_flag() -> None:
    job = run_launcher("-np", 1, sys.executable, "-c", "import horovod")
    assert b"No module named 'horovod'" in job.stderr


def test_the_version_is_one_of_horovods() -> None:
    assert printed("import horovod; print(horovod.__version__)") == "0.28.1"


def test_run_is_ours() -> None:
    assert printed("import horovod, horoscale; print(horovod.run is horoscale.run)") == "True"


@pytest.mark.parametrize("name", ["compat", "compat.util", "runner", "runner.hosts"])
def test_a_module_has_two_names_and_is_one(name: str) -> None:
    program = f"""
import importlib, sys
theirs = importlib.import_module("horovod.{name}")
ours = importlib.import_module("horoscale.{name}")
assert theirs is ours
assert ours.__name__ == ours.__spec__.name == "horoscale.{name}"
import horovod.{name} as statement
assert statement is ours
print(sys.modules["horovod.{name}"] is ours)
"""
    assert printed(program) == "True"


def test_the_other_order_of_imports_gives_the_same() -> None:
    program = (
        "import horoscale.runner.hosts as ours, horovod.runner.hosts as theirs\n"
        "from horovod.runner.hosts import Host\n"
        "print(ours is theirs and Host is ours.Host)"
    )
    assert printed(program) == "True"


def test_find_spec_answers_without_an_import() -> None:
    program = """
import importlib.util, sys
found = importlib.util.find_spec("horovod.numpy")
missing = importlib.util.find_spec("horovod.nothing")
print(found.name, missing, "horoscale.numpy" in sys.modules)
"""
    assert printed(program) == "horovod.numpy None False"


def test_a_module_is_found_as_horovods_is_without_what_it_needs() -> None:
    """Programs probe the import; only horoscale knows why it fails."""
    program = 'import importlib.util; print(importlib.util.find_spec("horovod.mxnet").name)'
    assert printed(program) == "horovod.mxnet"
    if importlib.util.find_spec("mxnet") is None:
        job = run_compat("import horovod.mxnet")
        assert b"horoscale.mxnet needs MXNet 1.9.1" in job.stderr


def test_a_module_that_is_nowhere_is_not_found() -> None:
    job = run_compat("import horovod.nothing")
    assert b"ModuleNotFoundError: No module named 'horovod.nothing'" in job.stderr


def test_what_does_not_exist_yet_says_so() -> None:
    program = """
import importlib
for name in ("tensorflow.data.compute_service", "tensorflow.data.compute_worker"):
    try:
        importlib.import_module("horovod." + name)
    except ModuleNotFoundError:
        print(name, "is not found")
    except ImportError as error:
        print(error)
"""
    lines = printed(program).replace("[0]<stdout>:", "").splitlines()
    products = ["service for tf.data"] * 2 * has_tensorflow()
    for line, product in zip(lines, products, strict=False):
        assert f"horoscale has no {product} yet" in line
    assert len(lines) == 2


def test_ray_is_missed_by_its_name() -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("Ray is installed")
    job = run_compat("import horovod.ray")
    assert b"horoscale.ray needs Ray 2.10 or newer" in job.stderr
    assert b"pip install 'horoscale[ray]'" in job.stderr


def test_elastic_training_has_horovods_names() -> None:
    program = """
import horovod.torch as hvd, horoscale.torch as ours, horoscale.torch.elastic.sampler
from horovod.common.elastic import ObjectState, State, run_fn
from horovod.torch.elastic import ElasticSampler, TorchState, run
from horovod.torch.elastic.sampler import ElasticSampler as Again
from horovod.torch.elastic.state import TorchState as State2
assert Again is ElasticSampler is ours.elastic.ElasticSampler
assert State2 is TorchState
assert issubclass(TorchState, ObjectState) and issubclass(ObjectState, State)
print(hvd.elastic.run is run)
"""
    assert printed(program) == "True"


def has_tensorflow() -> bool:
    return importlib.util.find_spec("tensorflow") is not None


def test_the_version_has_horovods_places() -> None:
    program = """
import horovod, horovod.metadata, horovod.version
print(horovod.__version__ == horovod.version.__version__ == horovod.metadata.__version__)
"""
    assert printed(program) == "True"


def test_data_loaders() -> None:
    program = """
from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from horovod.data.data_loader_base import AsyncDataLoaderMixin as Again
import horoscale.data

class Numbers(BaseDataLoader):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def _iterate(self):
        yield from range(self.count)

class Asynchronous(AsyncDataLoaderMixin, Numbers):
    pass

loader = Asynchronous(2, count=5)
print(list(loader), list(loader), len(loader), Again is horoscale.data.AsyncDataLoaderMixin)
loader.close_async_loader()
"""
    assert printed(program) == "[0, 1, 2, 3, 4] [0, 1, 2, 3, 4] 5 True"


@pytest.mark.skipif(not has_tensorflow(), reason="needs tensorflow")
def test_data_of_tensorflow() -> None:
    program = """
import horoscale.data as ours, horovod.tensorflow.data as theirs
print(theirs.BaseDataLoader is ours.BaseDataLoader)
"""
    assert printed(program) == "True"


def test_pickles_of_either_name_give_the_same_class() -> None:
    program = """
import pickle
from horoscale.runner.hosts import Host
ours = pickle.dumps(Host("a", 1), protocol=0)
theirs = ours.replace(b"horoscale.runner", b"horovod.runner")
assert theirs != ours
print(type(pickle.loads(theirs)) is type(pickle.loads(ours)) is Host)
"""
    assert printed(program) == "True"


def test_common_util() -> None:
    program = """
from horovod.common.util import extension_available, num_rank_is_power_2, split_list
print(extension_available("nothing"), num_rank_is_power_2(8), num_rank_is_power_2(6),
      split_list(list(range(7)), 3))
"""
    assert printed(program) == "False True False [[0, 1, 2], [3, 4], [5, 6]]"


def test_horovodrun_is_on_the_path() -> None:
    job = run_launcher(
        "-np", 1, "--compat", "horovodrun", "-np", 2,
        sys.executable, "-c", "import horovod; print(horovod.__version__)",
    )  # fmt: skip
    assert job.returncode == 0, job.stderr.decode()
    assert sorted(job.stdout.splitlines()) == [
        b"[0]<stdout>:[0]<stdout>:0.28.1",
        b"[0]<stdout>:[1]<stdout>:0.28.1",
    ]


def test_the_user_s_paths_come_after_ours() -> None:
    job = run_launcher(
        "-np", 1, "--compat", "sh", "-c", "echo $PYTHONPATH; echo $PATH",
        env={"PATH": environment()["PATH"]},
    )  # fmt: skip
    python_path, path = (line.split(b":", 1)[1].decode() for line in job.stdout.splitlines())
    assert python_path == f"{COMPAT_DIRECTORY / 'path'}:{environment()['PYTHONPATH']}"
    assert path == f"{COMPAT_DIRECTORY / 'bin'}:{environment()['PATH']}"


def test_the_torch_binding_under_horovods_names() -> None:
    pytest.importorskip("torch")
    program = """
import importlib.util
assert importlib.util.find_spec("horovod.torch") is not None
import horovod.torch as hvd
import horoscale.torch
assert hvd is horoscale.torch
from horovod.torch.mpi_ops import allreduce, allgather_async, poll, synchronize
from horovod.torch.compression import Compression
from horovod.torch.functions import broadcast_object, broadcast_parameters
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.process_sets import ProcessSet, global_process_set
assert allreduce is hvd.allreduce and ProcessSet is hvd.ProcessSet
assert HorovodInternalError is hvd.HorovodInternalError
import pickle
old = pickle.dumps(hvd.Compression.fp16, protocol=0).replace(b"horoscale", b"horovod")
assert pickle.loads(old) is hvd.Compression.fp16
hvd.init()
print(hvd.rank(), hvd.size())
"""
    assert printed(program) == "0 1"
