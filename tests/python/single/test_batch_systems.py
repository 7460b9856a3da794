"""What Slurm, LSF and PBS tell about their jobs in variables and files."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horoscale.common import batch_meeting
from horoscale.engines.batch import BatchError
from horoscale.engines.batch_systems import find_allocation, find_task
from horoscale.engines.nodelist import expand_counts, expand_nodes
from horoscale.runner.hosts import Host
from horoscale.runner.remote import RemoteShell, resolve_hosts, supervisor_command

SLURM_JOB = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "gpu[08-10]",
    "SLURM_TASKS_PER_NODE": "4(x2),3",
    "SLURMD_NODENAME": "gpu08",
}
SLURM_STEP = {
    **SLURM_JOB,
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gpu[08-10]",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_PROCID": "9",
    "SLURM_NODEID": "2",
    "SLURM_SRUN_COMM_PORT": "40001",
    "SLURMD_NODENAME": "gpu10",
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("a,b", ["a", "b"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-10].c,m", ["n08.c", "n09.c", "n10.c", "m"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("r[1-2]-n[5]x", ["r1-n5x", "r2-n5x"]),
        ("", []),
    ],
)
def test_lists_of_nodes(text: str, names: list[str]) -> None:
    assert expand_nodes(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[a]", "]", "n[1-99999999]", ",a", "n[[1]]", "n[]"])
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(ValueError, match="nodes"):
        expand_nodes(text)


@given(st.text(alphabet="n0123456789[]-,.", max_size=30))
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    try:
        names = expand_nodes(text)
    except ValueError:
        return
    assert all(names)


def test_counts_by_node() -> None:
    assert expand_counts("4(x2),3") == [4, 4, 3]
    for text in ("", "4(x", "many", "4(x99999999999)"):
        with pytest.raises(ValueError, match="numbers by node"):
            expand_counts(text)


# ------------------------------------------------------------------ Slurm


def test_a_task_of_srun() -> None:
    task = find_task(SLURM_STEP)
    assert task is not None
    assert (task.rank, task.size, task.node) == (9, 11, "gpu10")
    assert 20000 <= task.port < 32000
    again = find_task({**SLURM_STEP, "SLURM_RESTART_COUNT": "1"})
    other = find_task({**SLURM_STEP, "SLURM_STEP_ID": "3"})
    assert again is not None
    assert other is not None
    assert len({task.job, again.job, other.job}) == 3
    assert other.port != task.port


@pytest.mark.parametrize(
    "change", [{"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NODELIST": None}], ids=["one", "batch"]
)
def test_no_task_of_several(change: dict[str, str | None]) -> None:
    variables = {**SLURM_STEP, **change}
    assert find_task({name: one for name, one in variables.items() if one is not None}) is None


def test_variables_that_do_not_parse_are_named() -> None:
    with pytest.raises(BatchError, match="SLURM_PROCID='x' does not parse"):
        find_task({**SLURM_STEP, "SLURM_PROCID": "x"})
    with pytest.raises(BatchError, match="SLURM_JOB_NODELIST: 'n\\[' is not a list of nodes"):
        find_allocation({**SLURM_JOB, "SLURM_JOB_NODELIST": "n["})


def test_the_nodes_of_an_allocation_are_reached_by_srun() -> None:
    allocation = find_allocation(SLURM_JOB)
    assert allocation is not None
    assert allocation.slots == {"gpu08": 4, "gpu09": 4, "gpu10": 3}
    shell = RemoteShell(allocation=allocation)
    machines = resolve_hosts([Host(*one) for one in allocation.slots.items()], shell)
    assert machines.remote
    assert "srun" not in machines.commands["gpu08"]  # the host of this process
    command = machines.commands["gpu09"]
    assert command[command.index("srun") :][:2] == ["srun", "--jobid=4711"]
    assert command[command.index("--nodelist") + 1] == "gpu09"
    assert supervisor_command("gpu09", shell) == command


def test_a_remote_shell_or_another_host_goes_before_the_batch_system() -> None:
    allocation = find_allocation(SLURM_JOB)
    named = RemoteShell(command="rsh", allocation=allocation)
    assert resolve_hosts([Host("gpu09", 1)], named).commands["gpu09"][0] == "rsh"
    elsewhere = resolve_hosts([Host("192.0.2.9", 1)], RemoteShell(allocation=allocation))
    assert elsewhere.commands["192.0.2.9"][0] == "ssh"


# ------------------------------------------------------------------ LSF and PBS


def test_lsf_tells_hosts_and_slots_by_a_variable_or_a_file(tmp_path: Path) -> None:
    by_variable = find_allocation({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "batch3 1 a 4 b 2"})
    assert by_variable is not None
    assert by_variable.slots == {"a": 4, "b": 2}  # none on the node that runs the script
    assert by_variable.shell == ("blaunch",)
    hosts = tmp_path / "hosts"
    hosts.write_text("a\na\nb\n")
    by_file = find_allocation({"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": str(hosts)})
    assert by_file is not None
    assert by_file.slots == {"a": 2, "b": 1}
    with pytest.raises(BatchError, match="LSB_MCPU_HOSTS='a' does not parse"):
        find_allocation({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a"})


JSRUN_TASK = {
    "LSB_JOBID": "7",
    "LSB_MCPU_HOSTS": "batch3 1 a 4 b 2",
    "JSM_NAMESPACE_RANK": "5",
    "JSM_NAMESPACE_SIZE": "6",
}


def test_a_task_of_jsrun() -> None:
    task = find_task(JSRUN_TASK)
    assert task is not None
    assert (task.rank, task.size, task.node) == (5, 6, socket.gethostname())
    assert task.first_address() == "a"


def test_elements_of_an_array_of_lsf_do_not_meet() -> None:
    tasks = [find_task({**JSRUN_TASK, "LSB_JOBINDEX": index}) for index in ("1", "2")]
    assert len({task.job for task in tasks if task is not None}) == 2
    assert len({task.port for task in tasks if task is not None}) == 2


def test_pbs_tells_a_line_for_each_slot(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("x\nx\ny\n\n")
    allocation = find_allocation({"PBS_JOBID": "1.server", "PBS_NODEFILE": str(nodes)})
    assert allocation is not None
    assert allocation.slots == {"x": 2, "y": 1}
    # By ssh, because PBS's own commands don't forward standard input.
    machines = resolve_hosts([Host("192.0.2.9", 1)], RemoteShell(allocation=allocation))
    assert machines.commands["192.0.2.9"][0] == "ssh"
    nodes.write_text("\n")
    with pytest.raises(BatchError, match="there is no host in it"):
        find_allocation({"PBS_JOBID": "1.server", "PBS_NODEFILE": str(nodes)})
    with pytest.raises(BatchError, match=r"PBS_NODEFILE=/nowhere: .*No such file"):
        find_allocation({"PBS_JOBID": "1.server", "PBS_NODEFILE": "/nowhere"})


def test_no_batch_system() -> None:
    assert find_allocation({"SLURM_JOB_ID": "1"}) is None
    assert find_allocation({}) is None
    assert find_task({}) is None


# ------------------------------------------------------------------ how ranks meet


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("HOROSCALE_", "HOROVOD_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOROSCALE_HOSTNAME", "")  # set by identity(): restored afterwards
    monkeypatch.delenv("HOROSCALE_HOSTNAME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(batch_meeting, "_met", {})
    for name, value in SLURM_STEP.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_ranks_of_mpirun_in_a_job_are_left_to_mpi(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mpirun starts its daemons by srun, whose variables its ranks inherit."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "44")
    assert batch_meeting.identity(()) is None


def test_a_file_that_others_can_read_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / ".horoscale"
    folder.mkdir(mode=0o700)
    task = find_task(SLURM_STEP)
    assert task is not None
    (folder / task.job).write_text("127.0.0.1:1 secret\n")
    (folder / task.job).chmod(0o644)
    with pytest.raises(RuntimeError, match="other users can read or change"):
        batch_meeting.identity(())


def test_a_folder_that_others_can_write_is_refused(home: Path) -> None:
    (home / ".horoscale").mkdir()
    (home / ".horoscale").chmod(0o777)
    with pytest.raises(RuntimeError, match="other users can read or change"):
        batch_meeting.identity(())


def test_a_rank_that_finds_no_file_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROSCALE_START_TIMEOUT", "0.1")
    with pytest.raises(RuntimeError, match=r"rank 9 of 11, on gpu10, finds no file .* of rank 0"):
        batch_meeting.identity(())


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "-1"])
def test_a_start_timeout_that_can_not_be_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("HOROSCALE_START_TIMEOUT", text)
    with pytest.raises(ValueError, match=f"HOROSCALE_START_TIMEOUT='{text}' does not parse"):
        batch_meeting.identity(())


def test_with_a_secret_the_port_follows_from_the_job(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROSCALE_SECRET", "0123456789abcdef" * 2)
    monkeypatch.setenv("PATH", "/nowhere")  # without scontrol the name must suffice
    known = batch_meeting.identity(())
    task = find_task(SLURM_STEP)
    assert known is not None
    assert task is not None
    assert known.rendezvous == f"gpu08:{task.port}"
    assert not known.served
    assert list(home.iterdir()) == []
