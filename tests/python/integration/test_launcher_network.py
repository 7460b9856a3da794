"""Jobs on hosts with separate networks: namespaces, reached by `ip netns exec` or sshd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_process import PATIENCE_S, Launcher, environment, launcher_command
from support import namespaces
from support.namespaces import NetworkHosts

pytestmark = pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))

LONG = 600  # seconds, beyond any test's time: what ends has not waited for it
# Each rank tells the others its number through the job's store.
MEET = """
import os
from horoscale._core import StoreClient
host, port = os.environ["HOROSCALE_RENDEZVOUS"].rsplit(":", 1)
store = StoreClient(host.strip("[]"), int(port), os.environ["HOROSCALE_SECRET"])
rank, size = (os.environ["HOROSCALE_" + name] for name in ("RANK", "SIZE"))
store.set("met" + rank, rank.encode())
met = [store.get(f"met{other}", 30).decode() for other in range(int(size))]
print(os.environ["HOROSCALE_HOSTNAME"], host, *met)
"""


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("count", [2, 3])
def test_the_ranks_reach_the_launcher(count: int, version: int) -> None:
    with NetworkHosts(count, version=version) as hosts:
        flags = ("--remote-shell", namespaces.REMOTE_SHELL, "-np", 2 * count)
        listed = ",".join(f"{name}:2" for name in hosts.names)
        job = run_on(hosts, *flags, "-H", listed, sys.executable, "-c", MEET)
        assert job.returncode == 0, job.stderr
        address = hosts.addresses[0] if version == 4 else f"[{hosts.addresses[0]}]"
        everybody = " ".join(map(str, range(2 * count)))
        assert sorted(job.stdout.splitlines()) == [
            f"[{rank}]<stdout>:{hosts.names[rank // 2]} {address} {everybody}"
            for rank in range(2 * count)
        ]


def test_hosts_that_do_not_reach_the_launcher_are_named() -> None:
    with NetworkHosts(2) as hosts:
        hosts.pull_cable(1)
        flags = ("--remote-shell", namespaces.REMOTE_SHELL, "-np", 2, "-H", ",".join(hosts.names))
        job = run_on(hosts, *flags, "--start-timeout", 4, "true")
        assert job.returncode == 1
        assert "no address of this machine can be reached from all hosts" in job.stderr
        assert f"missing {hosts.names[1]}. Check for a firewall" in job.stderr


def run_on(hosts: NetworkHosts, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A job that is started on the first host."""
    return subprocess.run(
        hosts.command(0, *launcher_command(*arguments)),
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


# ---------------------------------------------------------------- ssh


class SshHosts:
    """Two hosts; the second one runs an sshd, which the `ssh` in `folder` can reach."""

    def __init__(self, hosts: NetworkHosts, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        for key in ("host_key", "key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
            )
        host, port = hosts.addresses[1], 2222
        known = (folder / "host_key.pub").read_text().split()[:2]
        (folder / "known_hosts").write_text(f"[{host}]:{port} {' '.join(known)}\n")
        (folder / "sshd_config").write_text(
            f"ListenAddress {host}\nPort {port}\nHostKey {folder}/host_key\nPidFile none\n"
            f"AuthorizedKeysFile {folder}/key.pub\nStrictModes no\nUsePAM no\n"
            "PermitRootLogin yes\n"
        )
        (folder / "ssh_config").write_text(f"UserKnownHostsFile {folder}/known_hosts\n")
        ssh = folder / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        ssh.chmod(0o755)
        Path("/run/sshd").mkdir(exist_ok=True)
        sshd = hosts.command(1, "/usr/sbin/sshd", "-D", "-e", "-f", folder / "sshd_config")
        self.sshd = subprocess.Popen(sshd, stderr=subprocess.PIPE, text=True)
        assert self.sshd.stderr is not None
        assert "Server listening" in self.sshd.stderr.readline()

    def flags(self, size: int) -> tuple[object, ...]:
        listed = f"{self.hosts.addresses[0]}:{size // 2},{self.hosts.addresses[1]}:{size // 2}"
        return ("-np", size, "-H", listed, "-p", 2222, "-i", self.folder / "key")

    def launcher(self, size: int, *command: object) -> Launcher:
        path = f"{self.folder}:{os.environ['PATH']}"
        return Launcher(
            *self.flags(size), "-x", "LAUNCHER_TEST_MARKER", *command,
            env={"PATH": path}, prefix=self.hosts.command(0),
        )  # fmt: skip

    def remote(self, part: str) -> list[int]:
        """Processes of the second host whose command line contains a text."""
        return [
            pid
            for pid in self.hosts.processes(1)
            if part.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]


@pytest.fixture
def ssh_hosts(tmp_path: Path) -> Iterator[SshHosts]:
    if not Path("/usr/sbin/sshd").exists() or shutil.which("ssh") is None:
        pytest.skip("needs Debian's openssh-server and openssh-client")
    with NetworkHosts(2) as hosts:
        ssh = SshHosts(hosts, tmp_path)
        yield ssh
        ssh.sshd.kill()
        ssh.sshd.communicate()


def test_ssh_starts_the_other_hosts_ranks(ssh_hosts: SshHosts) -> None:
    with ssh_hosts.launcher(4, sys.executable, "-c", MEET) as job:
        status, out, err = job.finish()
    assert status == 0, err
    first, second = ssh_hosts.hosts.addresses
    assert sorted(out.decode().splitlines()) == [
        f"[{rank}]<stdout>:{first if rank < 2 else second} {first} 0 1 2 3" for rank in range(4)
    ]


def test_a_host_whose_key_is_not_known_is_refused(ssh_hosts: SshHosts) -> None:
    (ssh_hosts.folder / "known_hosts").write_text("")
    with ssh_hosts.launcher(2, "true") as job:
        status, _, err = job.finish()
    assert status == 1
    assert b"Host key verification failed" in err


STUBBORN = (
    "trap '' TERM INT HUP; setsid sleep 1000 & sleep 1000 & echo $$; while :; do sleep 1000; done"
)


@pytest.mark.parametrize("victim", ["launcher", "ssh", "sshd", "guard", "supervisor"])
def test_nothing_survives_on_either_host(ssh_hosts: SshHosts, victim: str) -> None:
    hosts = ssh_hosts.hosts
    with ssh_hosts.launcher(4, "--grace-seconds", LONG, "sh", "-c", STUBBORN) as job:
        job.read_pids(4)
        guard, supervisor = sorted(ssh_hosts.remote("horoscale.runner.supervisor"))[-2:]
        connection = [pid for pid in ssh_hosts.remote("sshd: root") if pid != ssh_hosts.sshd.pid]
        ssh = [
            pid for pid in hosts.processes(0)
            if hosts.addresses[1].encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
            and b"ssh_config" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]  # fmt: skip
        victims = {
            "launcher": [job.process.pid],
            "ssh": ssh,
            "sshd": connection,
            "guard": [guard],
            "supervisor": [supervisor],
        }
        began = time.monotonic()
        assert victims[victim]
        for pid in victims[victim]:
            os.kill(pid, signal.SIGKILL)
        status, _, err = job.finish()
        job.assert_nothing_left()
        while ssh_hosts.remote("horoscale.runner") or hosts.processes(0):
            assert time.monotonic() < began + PATIENCE_S
            time.sleep(0.02)
        if victim != "launcher":
            assert status == 1
            assert f"the supervisor on {hosts.addresses[1]}".encode() in err
