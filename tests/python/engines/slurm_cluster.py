"""A Slurm cluster on this machine: munged, slurmctld and a slurmd for each node, in one folder.

It uses only the system's programs, and changes nothing else. All nodes have the same address and
kernel; only their names make them several hosts.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from support.ranks import clean_environment

import horoscale

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
ROOT = Path(__file__).parents[3]
PACKAGE_ROOT = Path(horoscale.__file__).resolve().parents[1]
PATIENCE_S = 60.0
_LOOK_S = 0.05

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdTimeout={slurmd_timeout}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} State=UNKNOWN"
)


def missing() -> list[str]:
    """The names of programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


class SlurmCluster:
    """A cluster; as a context it leaves no process behind."""

    def __init__(self, folder: Path, nodes: int = 2, cpus: int = 2) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.nodes = [f"node{number + 1}" for number in range(nodes)]
        self._cpus = cpus
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._conf = folder / "slurm.conf"
        self._jobs = 0

    def __enter__(self) -> SlurmCluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ use

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a user of the cluster, whose home is in the folder."""
        path = os.pathsep.join([str(Path(sys.executable).parent), _path()])
        python_path = os.pathsep.join(
            filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")])
        )
        return {
            **clean_environment(),
            "SLURM_CONF": str(self._conf),
            "HOME": str(self.home),
            "PATH": path,
            "PYTHONPATH": python_path,
            "OMP_NUM_THREADS": "1",
            **(extra or {}),
        }

    def run(
        self, *command: object, seconds: float = PATIENCE_S, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user."""
        return subprocess.run(
            list(map(str, command)),
            env=self.environment(variables),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def submit(self, script: str, *options: str, **variables: str) -> BatchJob:
        """Submit lines as a batch script, by default on 2 nodes with 2 tasks each."""
        self._jobs += 1
        file = self.folder / f"job{self._jobs}.sbatch"
        file.write_text(f"#!/bin/bash\n{script}\n")
        return self.submit_file(file, *options, **variables)

    def submit_file(self, file: Path, *options: str, **variables: str) -> BatchJob:
        self._jobs += 1
        output = self.folder / f"job{self._jobs}.out"
        shape = () if options else ("--nodes=2", "--ntasks-per-node=2")
        said = self.run(
            *("sbatch", "--parsable", f"--output={output}", "--open-mode=append"),
            *shape,
            *options,
            file,
            **variables,
        )
        assert said.returncode == 0, said.stderr
        return BatchJob(self, said.stdout.split(";")[0].strip(), output)

    def kill_node(self, name: str) -> None:
        """Kill everything on a node, as a power failure would."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()
        for pid in _processes_with(f"SLURMD_NODENAME={name}"):
            _kill(pid)
        for pid in _running("slurmstepd", name):
            _kill(pid)

    # ------------------------------------------------------------------ the daemons

    def _start(self) -> None:
        for name in ("state", "home", *(f"tmp-{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.folder.chmod(0o755)
        with contextlib.ExitStack() as held:
            ports = [held.enter_context(_free_port()) for _ in range(len(self.nodes) + 1)]
            numbers = [one.getsockname()[1] for one in ports]
        host = socket.gethostname()
        lines = [
            _NODE.format(name=name, host=host, port=port, cpus=self._cpus)
            for name, port in zip(self.nodes, numbers[1:], strict=True)
        ]
        self._conf.write_text(
            _CONFIGURATION.format(
                host=host,
                port=numbers[0],
                user=getpass.getuser(),
                folder=self.folder,
                slurmd_timeout=15,
                nodes="\n".join(lines),
            )
        )
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid"}
        files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        flags = [f"--{flag}={self.folder / name}" for flag, name in files.items()]
        self._daemon("munged", "munged", "--foreground", "--force", *flags)
        self._wait_for(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._daemon("slurmctld", "slurmctld", "-D", "-f", self._conf)
        self._wait_for(
            lambda: "is UP" in self.run("scontrol", "ping").stdout, "slurmctld", every=0.2
        )
        for name in self.nodes:
            self.start_node(name)
        self._wait_for(self._all_idle, "slurmd", every=0.2)

    def start_node(self, name: str) -> None:
        self._daemon(name, "slurmd", "-D", "-N", name, "-f", self._conf)

    def _all_idle(self) -> bool:
        said = self.run("sinfo", "--noheader", "--Node", "--format=%T").stdout
        return said.split() == ["idle"] * len(self.nodes)

    def _daemon(self, name: str, *command: object) -> None:
        log = (self.folder / f"{name}.said").open("wb")
        self._daemons[name] = subprocess.Popen(
            list(map(str, command)),
            env={**os.environ, "PATH": _path(), "SLURM_CONF": str(self._conf)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()

    def _wait_for(self, happened: Callable[[], bool], what: str, every: float = _LOOK_S) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            ended = [name for name, one in self._daemons.items() if one.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"{what} does not start ({ended} ended):\n{self.logs()}")
            time.sleep(every)

    def logs(self) -> str:
        """The last lines of the daemons' logs."""
        files = [*self.folder.glob("*.log"), *self.folder.glob("*.said")]
        return "\n".join(f"== {one.name}\n{one.read_text()[-3000:]}" for one in files)

    def close(self) -> None:
        marker = f"SLURM_CONF={self._conf}"
        for signum in (signal.SIGTERM, signal.SIGKILL):
            for daemon in self._daemons.values():
                if daemon.poll() is None:
                    daemon.send_signal(signum)
            deadline = time.monotonic() + 5.0
            for daemon in self._daemons.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    daemon.wait(max(0.1, deadline - time.monotonic()))
        for _ in range(100):  # processes that steps have left behind
            left = [pid for pid in _processes_with(marker) if pid != os.getpid()]
            if not left:
                break
            for pid in left:
                _kill(pid)
            time.sleep(_LOOK_S)


class BatchJob:
    """A submitted job."""

    def __init__(self, cluster: SlurmCluster, number: str, output: Path) -> None:
        self._cluster = cluster
        self.number = number
        self._output = output

    def output(self) -> str:
        return self._output.read_text() if self._output.exists() else ""

    def field(self, name: str) -> str:
        """A field of scontrol's description."""
        said = self._cluster.run("scontrol", "--oneliner", "show", "job", self.number).stdout
        return dict(word.partition("=")[::2] for word in said.split()).get(name, "")

    def wait(self, seconds: float = PATIENCE_S, *states: str) -> str:
        """Wait for the job's end, or another state; return its exit code as Slurm reports it."""
        wanted = states or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        deadline = time.monotonic() + seconds
        while (state := self.field("JobState")) not in wanted:
            if time.monotonic() > deadline:
                raise AssertionError(f"the job is {state}:\n{self.output()}{self._cluster.logs()}")
            time.sleep(_LOOK_S)
        return self.field("ExitCode")

    def wait_for_output(self, text: str, seconds: float = PATIENCE_S) -> str:
        deadline = time.monotonic() + seconds
        while text not in (said := self.output()):
            ended = self.field("JobState") in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL")
            if ended and text in self.output():
                continue
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"no {text!r} in\n{self.output()}{self._cluster.logs()}")
            time.sleep(_LOOK_S)
        return said

    def cancel(self, *options: str) -> None:
        self._cluster.run("scancel", *options, self.number)


def _free_port() -> contextlib.AbstractContextManager[socket.socket]:
    held = socket.socket()
    held.bind(("", 0))
    return held


def _processes_with(marker: str) -> Iterator[int]:
    """Processes with this variable in their environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


def _running(*words: str) -> Iterator[int]:
    """Processes whose command line contains all these words."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if all(word in line for word in words):
                yield int(folder.name)


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
