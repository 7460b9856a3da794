"""The scripts of examples/lsf and examples/pbs, with stand-ins for the systems' launchers.

Neither system is needed. Variables and files follow their documentation, and `blaunch`, `jsrun` and
ssh run the given command on this machine, which plays all hosts.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.examples import EXAMPLES, ROOT
from support.ranks import clean_environment

import horoscale

pytestmark = pytest.mark.timeout(180)
RESUMED = ROOT / "tests/python/engines/resumed.py"
NUMPY = EXAMPLES / "numpy_allreduce.py"
LINE = "4 ranks, 4000 points: y = 3.00 x + 0.50"
PACKAGE_ROOT = Path(horoscale.__file__).resolve().parents[1]
OWN, OTHER = socket.gethostname(), "other.invalid"
SECONDS = 90.0

# blaunch HOST PROGRAM ARGUMENTS: no shell parses the words again.
BLAUNCH = '#!/bin/sh\necho "blaunch $1" >> "$CALLS"\nshift\nexec "$@"\n'
# ssh OPTIONS HOST WORDS: a shell parses them.
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
echo "ssh $1" >> "$CALLS"
shift
exec sh -c "$*"
"""
QSUB = '#!/bin/sh\necho "qsub $*" >> "$CALLS"\n'
# Starts the tasks as jsrun does, all on this node.
JSRUN = """#!/bin/sh
while case $1 in --*) true;; *) false;; esac; do
  if [ "$1" = --nrs ]; then size=$2; fi
  shift 2
done
for rank in $(seq 0 $((size - 1))); do
  JSM_NAMESPACE_RANK=$rank JSM_NAMESPACE_SIZE=$size JSM_NAMESPACE_ID=1 "$@" & tasks="$tasks $!"
done
for task in $tasks; do wait $task || status=$?; done
exit ${status:-0}
"""


class Site:
    """A machine that looks like the first host of a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        (folder / "bin").mkdir()
        (folder / "home").mkdir()
        for name, text in (
            *(("blaunch", BLAUNCH), ("jsrun", JSRUN), ("ssh", SSH), ("qsub", QSUB)),
            (
                "horoscalerun",
                f'#!/bin/sh\nexec {sys.executable} -m horoscale.runner "$@"\n',
            ),
            ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n'),
        ):
            program = folder / "bin" / name
            program.write_text(text)
            program.chmod(0o755)

    def environment(self, **variables: object) -> dict[str, str]:
        inherited = clean_environment()
        python_path = [str(PACKAGE_ROOT), inherited.get("PYTHONPATH", "")]
        return {
            **inherited,
            "PATH": f"{self.folder / 'bin'}:{inherited['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, python_path)),
            "HOME": str(self.folder / "home"),
            "CALLS": str(self.calls),
            "OMP_NUM_THREADS": "1",
            **{name: str(value) for name, value in variables.items()},
        }

    def lsf(self, **variables: object) -> dict[str, str]:
        """LSF's variables for a job with two slots on this host and two on another."""
        hosts = self.folder / "djob"
        hosts.write_text(f"{OWN}\n" * 2 + f"{OTHER}\n" * 2)
        return self.environment(
            LSB_JOBID=4711,
            LSB_DJOB_HOSTFILE=hosts,
            LSB_MCPU_HOSTS=f"{OWN} 2 {OTHER} 2",
            **variables,
        )

    def pbs(self, **variables: object) -> dict[str, str]:
        """The same for PBS."""
        nodes = self.folder / "nodes"
        nodes.write_text(f"{OWN}\n" * 2 + f"{OTHER}\n" * 2)
        return self.environment(
            PBS_JOBID="4711.server", PBS_NODEFILE=nodes, PBS_O_WORKDIR=self.folder, **variables
        )

    def run(self, script: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a script as the batch system does."""
        return subprocess.run(
            ["bash", script],
            env=env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_job_of_lsf_reaches_its_hosts_through_blaunch(site: Site) -> None:
    ended = site.run(EXAMPLES / "lsf/train.lsf", site.lsf(PROGRAM=NUMPY))
    assert ended.returncode == 0, ended.stderr
    assert LINE in ended.stdout
    assert site.called() == [f"blaunch {OTHER}"]


def test_tasks_of_jsrun_find_each_other(site: Site) -> None:
    hosts = f"batch1 1 {OWN} 4"
    env = site.environment(LSB_JOBID=4711, LSB_MCPU_HOSTS=hosts, PROGRAM=NUMPY)
    ended = site.run(EXAMPLES / "lsf/jsrun.lsf", env)
    assert ended.returncode == 0, ended.stderr
    assert LINE in ended.stdout
    assert list((site.folder / "home/.horoscale").iterdir()) == []


def test_a_job_of_pbs_reaches_its_hosts_through_ssh(site: Site) -> None:
    ended = site.run(EXAMPLES / "pbs/train.pbs", site.pbs(PROGRAM=NUMPY))
    assert ended.returncode == 0, ended.stderr
    assert LINE in ended.stdout
    assert site.called() == [f"ssh {OTHER}"]


def test_more_ranks_than_slots(site: Site) -> None:
    script = site.folder / "script"
    script.write_text("horoscalerun -np 5 true\n")
    for env, system, more in (
        (site.lsf(), "LSF", "bsub's -n gives more"),
        (site.pbs(), "PBS", "qsub's -l select=N:mpiprocs=M (Torque: -l nodes=N:ppn=M) gives more"),
    ):
        ended = site.run(script, env)
        assert ended.returncode == 2
        assert ended.stderr == (
            f"horoscalerun: error: -np 5 is more than the 4 slots that {system} has allocated to "
            f"this job ({OWN}:2, {OTHER}:2); {more}\n"
        )


@pytest.mark.parametrize("system", ["lsf", "pbs"])
def test_a_host_without_horoscale_is_named(site: Site, system: str) -> None:
    for name in ("blaunch", "ssh"):  # another interpreter is first on the path there
        program = site.folder / "bin" / name
        text = program.read_text().replace("exec ", "exec env PYTHONPATH=/nowhere ")
        text = text.replace('"$@"', "python3 -S -m horoscale.runner.supervisor")
        program.write_text(text.replace('sh -c "$*"', "python3 -S -m horoscale.runner.supervisor"))
    ended = site.run(EXAMPLES / f"{system}/train.{system}", getattr(site, system)(PROGRAM=NUMPY))
    assert ended.returncode == 1
    assert "no rank was started, because of a host:" in ended.stderr
    assert re.search(rf"{OTHER}: exit status 1; .*No module named 'horoscale'", ended.stderr)


def test_lsf_queues_a_job_again_that_has_written_a_checkpoint(site: Site) -> None:
    """A minute before the limit, LSF sends SIGTERM; -Q names the exit status of a requeue."""
    script = EXAMPLES / "lsf/requeue.lsf"
    assert '#BSUB -wa TERM\n#BSUB -wt 1\n#BSUB -Q "143"' in script.read_text()
    env = site.lsf(PROGRAM=RESUMED)
    output = site.folder / "output"
    with output.open("w") as file:
        job = subprocess.Popen(
            ["bash", script],
            env=env,
            cwd=site.folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + SECONDS
        while "step 10" not in output.read_text():
            assert job.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        assert job.wait(SECONDS) == 143, output.read_text()
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    again = site.run(script, {**env, "FINISH": "1"})
    assert again.returncode == 0, again.stderr
    check_resumed(again.stdout)


def test_a_job_of_pbs_submits_the_one_that_goes_on(site: Site) -> None:
    script = EXAMPLES / "pbs/continue.pbs"
    env = site.pbs(PROGRAM=RESUMED)
    # Training must fit into this time, however busy the machine is.
    for seconds in (5, 20, 60):
        first = site.run(script, {**env, "SECONDS_OF_TRAINING": str(seconds)})
        assert first.returncode == 143, first.stderr
        if "step 10" in first.stdout:
            break
    assert site.called()[-1] == "qsub examples/pbs/continue.pbs"
    again = site.run(script, {**env, "FINISH": "1"})
    assert again.returncode == 0, again.stderr
    check_resumed(again.stdout)


def check_resumed(output: str) -> None:
    begun = int(re.search(r"begins at step (\d+)", output)[1])
    assert begun >= 10
    assert f"finished at step {begun + 5}" in output


def test_scripts_name_themselves_as_they_are_submitted() -> None:
    scripts = sorted([*EXAMPLES.glob("lsf/*"), *EXAMPLES.glob("pbs/*"), *EXAMPLES.glob("slurm/*")])
    assert len(scripts) == 10
    for script in scripts:
        text = script.read_text()
        assert str(script.relative_to(ROOT)) in text
        assert text.startswith("#!/bin/bash\n#")
