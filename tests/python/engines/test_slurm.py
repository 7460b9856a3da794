"""Real Slurm: srun without manual settings, horoscalerun in an allocation, and how they end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import process_sets
import pytest
from slurm_cluster import SlurmCluster, missing
from support.examples import EXAMPLES, accuracy_of

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason="needs Debian's slurm-wlm and munge"),
    pytest.mark.timeout(180),
]
HERE = Path(__file__).parent
NUMPY = EXAMPLES / "numpy_allreduce.py"
LINE = "4 ranks, 4000 points: y = 3.00 x + 0.50"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes=2, cpus=2) as cluster:
        yield cluster


def outputs(
    cluster: SlurmCluster, script: str, *options: str, code: str = "0:0", seconds: float = 60
) -> str:
    """The output of a batch script that ends with this exit code."""
    job = cluster.submit(script, *options)
    assert job.wait(seconds) == code, job.output() + cluster.logs()
    return job.output()


def left_files(cluster: SlurmCluster) -> list[Path]:
    return list((cluster.home / ".horoscale").glob("*"))


def test_the_digits_are_learnt_with_nothing_written_by_hand(cluster: SlurmCluster) -> None:
    program = EXAMPLES / "torch_digits.py"
    said = outputs(cluster, f"srun python {program} --epochs 6", seconds=150)
    assert "4 ranks" in said
    assert accuracy_of(said) > 0.93
    assert int(re.search(r"([\d,]+) bytes went between hosts", said)[1].replace(",", "")) > 1e6
    assert left_files(cluster) == []


def test_process_sets_named_at_the_start_and_later(cluster: SlurmCluster) -> None:
    program = HERE / "process_sets.py"
    said = outputs(cluster, f"srun python {program} && horoscalerun python {program}")
    assert said.count(process_sets.EXPECTED) == 2, said


def test_a_killed_rank_is_named_by_the_others_and_ends_the_job(cluster: SlurmCluster) -> None:
    job = cluster.submit(f"srun --kill-on-bad-exit python {HERE / 'killed.py'}")
    # srun ends the other tasks. Its own code is the highest: that of SIGKILL or, if quick, of
    # SIGTERM.
    code, said = job.wait(), job.output()
    assert code in ("137:0", "143:0"), code + said + cluster.logs()
    assert job.field("JobState") == "FAILED"
    told = re.findall(r"^rank (\d) after ([\d.]+) s: RankFailedError: rank 2 failed", said, re.M)
    print(f"the survivors raised after {', '.join(seconds for _, seconds in told)} s")
    assert sorted(rank for rank, _ in told) == ["0", "1", "3"], said
    assert "task 2: Killed" in said
    assert left_files(cluster) == []


def test_a_secret_of_the_batch_script_needs_no_file(cluster: SlurmCluster) -> None:
    (cluster.folder / "no_home").write_text("")
    said = outputs(
        cluster,
        "export HOROSCALE_SECRET=$(openssl rand -hex 32)\n"
        f"HOME={cluster.folder}/no_home srun python {NUMPY}",
    )
    assert LINE in said


def test_a_secret_in_a_file_of_the_batch_script(cluster: SlurmCluster) -> None:
    """In a folder that all nodes share; they have no home, and srun passes the name."""
    (cluster.folder / "no_home").write_text("")
    said = outputs(
        cluster,
        "export HOROSCALE_SECRET_FILE=$PWD/secret-$SLURM_JOB_ID\n"
        "(umask 077; openssl rand -hex 32 > $HOROSCALE_SECRET_FILE)\n"
        "export HOME=$PWD/no_home\n"
        f"srun --export=HOROSCALE_SECRET_FILE,PATH,PYTHONPATH,HOME python {NUMPY}",
    )
    assert LINE in said


def test_without_secret_and_home_the_error_says_what_to_export(cluster: SlurmCluster) -> None:
    (cluster.folder / "file").write_text("")
    said = outputs(cluster, f"HOME={cluster.folder}/file srun python {NUMPY}", code="1:0")
    assert "export HOROSCALE_SECRET=$(openssl rand -hex 32) in the batch script" in said


def test_two_steps_at_the_same_time_are_two_jobs(cluster: SlurmCluster) -> None:
    one = f"srun --overlap python {NUMPY} &"
    said = outputs(cluster, f"{one}\n{one}\nwait")
    assert said.count(LINE) == 2, said


def test_horoscalerun_uses_the_nodes_of_its_allocation_through_srun(cluster: SlurmCluster) -> None:
    said = outputs(
        cluster,
        "horoscalerun --verbose bash -c 'echo at $HOROSCALE_HOSTNAME $SLURMD_NODENAME'\n"
        "horoscalerun -np 3 python -c 'import sys; sys.exit(7)'",
        code="7:0",
    )
    for rank, node in enumerate(["node1", "node1", "node2", "node2"]):
        assert f"[{rank}]<stdout>:at {node} {node}" in said
    assert re.search(r"rank \d on node[12] failed first: exit status 7", said)


def test_all_bytes_pass_through_srun_as_they_are(cluster: SlurmCluster) -> None:
    (cluster.folder / "blob").write_bytes(bytes(range(256)) * 9999)
    outputs(cluster, "horoscalerun -np 1 -H node2:1 --output-filename out cat blob > /dev/null")
    blob, passed = (cluster.folder / name for name in ("blob", "out/rank.0/stdout"))
    assert passed.read_bytes() == blob.read_bytes()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "horoscalerun -np 5 true",
            "-np 5 is more than the 4 slots that Slurm has allocated to this job (node1:2, "
            "node2:2); sbatch's --nodes and --ntasks-per-node give more",
        ),
        (
            "horoscalerun -np 5 --min-np 2 true",
            "the job starts with 5 ranks, but the hosts have only 4 slots",
        ),
        ("SLURM_TASKS_PER_NODE=many horoscalerun true", "SLURM_TASKS_PER_NODE: 'many' are not"),
    ],
    ids=["ranks", "elastic_ranks", "variable"],
)
def test_what_can_not_be_is_one_message(cluster: SlurmCluster, command: str, message: str) -> None:
    said = outputs(cluster, command, code="2:0")
    assert message in said
    assert len(said.splitlines()) == 1, said


def test_a_node_without_horoscale_is_named(cluster: SlurmCluster) -> None:
    """On node 2 horoscale is missing: srun can't find the program to start there."""
    lacking = cluster.folder / "lacking"
    lacking.mkdir()
    srun = lacking / "srun"
    srun.write_text('#!/bin/bash\nexec /usr/bin/srun "${@/horoscale.runner/lacking}"\n')
    srun.chmod(0o755)
    said = outputs(cluster, f"PATH={lacking}:$PATH horoscalerun python {NUMPY}", code="1:0")
    assert "no rank was started, because of a host:" in said
    assert re.search(r"node2: exit status 1; .*No module named 'lacking", said), said


def test_sigterm_before_the_limit_writes_a_checkpoint_that_the_next_job_resumes(
    cluster: SlurmCluster,
) -> None:
    program = f"srun python {HERE / 'resumed.py'}"
    variables = "export HOROSCALE_CHECKPOINT_DIR=$PWD/run HOROSCALE_RESUME=$PWD/run"
    job = cluster.submit(f"{variables}\n{program}")
    job.wait_for_output("step 10")
    job.cancel("--signal=TERM")
    assert job.wait() == "143:0", job.output()
    said = outputs(cluster, f"{variables}\nFINISH=1 {program}")
    resumed = int(re.search(r"begins at step (\d+)", said)[1])
    assert resumed >= 10
    assert f"finished at step {resumed + 5}" in said
