"""Jobs whose hosts have separate networks: collectives, training, lost hosts."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from launcher_process import Launcher, environment, launcher_command
from support import namespaces
from support.namespaces import NetworkHosts

pytestmark = pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120
# examples/torch_digits.py: 8 steps an epoch.
DEMO_EPOCHS, DEMO_STEPS, DEMO_PARAMETERS = 6, 6 * 8, 188_234
TIMEOUT_S = 5  # NETWORK_TIMEOUT_SECONDS of the tests that cut off a host

# Every operation once, with its result checked; prints the bytes that left the host.
OPERATIONS = """
import numpy as np
import horoscale.numpy as hvd

hvd.init(process_sets=[pair := hvd.ProcessSet([0, 2]), near := hvd.ProcessSet([0, 1])])
rank, size = hvd.rank(), hvd.size()
for count in (0, 1, 3, 1000, 65537, 1000003):
    pattern = np.arange(count, dtype=np.float32) % 1000
    for name, some, members in (("all", hvd.global_process_set, range(size)),
                                ("pair", pair, (0, 2)), ("near", near, (0, 1))):
        if rank in members:
            result = hvd.allreduce(pattern + rank, op=hvd.Sum, name=name, process_set=some)
            assert np.array_equal(result, pattern * len(members) + sum(members)), (name, count)
rows = hvd.allgather(np.full((rank + 1, 2), rank))
assert rows[:, 0].tolist() == [r for r in range(size) for _ in range(r + 1)]
assert hvd.broadcast(np.full(70000, rank), size - 1).tolist() == [size - 1] * 70000
received, splits = hvd.alltoall(np.arange(size) + 10 * rank, [1] * size)
assert received.tolist() == [10 * r + rank for r in range(size)] and splits.tolist() == [1] * size
part = hvd.reducescatter(np.ones((size, 3)), op=hvd.Sum)
assert part.tolist() == [[size] * 3]
handles = [hvd.allreduce_async(np.full(1000, i), op=hvd.Sum, name=f"many.{i}") for i in range(100)]
assert [hvd.synchronize(h)[0] for h in handles] == [i * size for i in range(100)]
print(hvd.local_size(), hvd.cross_size(), hvd.metrics()["network_bytes_sent"] > 0)
"""
# Endless collectives: how soon a rank notices that others are lost, and which ranks it names.
SURVIVE = """
import json, time
import numpy as np
import horoscale.numpy as hvd
from horoscale.common.exceptions import RankFailedError

hvd.init()
print("ready", flush=True)
last = time.monotonic()
try:
    while True:
        hvd.allreduce(np.ones(100000), name="again")
        last = time.monotonic()
except RankFailedError as error:
    print(json.dumps([time.monotonic() - last, list(error.ranks)]), flush=True)
"""


def run_on(
    hosts: NetworkHosts,
    per_host: str,
    *arguments: object,
    variables: Mapping[str, str] | None = None,
) -> str:
    """The output of a job that is started on the first host and succeeds."""
    job = start_on(hosts, per_host, *arguments, variables=variables)
    assert job.returncode == 0, job.stdout + job.stderr
    return job.stdout


def start_on(
    hosts: NetworkHosts,
    per_host: str,
    *arguments: object,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """The result of a job that is started on the first host."""
    listed = ",".join(f"{n}:{k}" for n, k in zip(hosts.names, per_host.split(","), strict=True))
    size = sum(map(int, per_host.split(",")))
    flags = ("--remote-shell", namespaces.REMOTE_SHELL, "-np", size, "-H", listed)
    return subprocess.run(
        hosts.command(0, *launcher_command(*flags, *arguments)),
        env=environment() | {"OMP_NUM_THREADS": "1"} | dict(variables or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize(
    ("per_host", "version"), [("2,2", 4), ("2,2", 6), ("1,1,1", 4), ("3,1", 6), ("1,2,1", 4)]
)
def test_every_operation(per_host: str, version: int) -> None:
    with NetworkHosts(per_host.count(",") + 1, version=version) as hosts:
        output = run_on(hosts, per_host, sys.executable, "-c", OPERATIONS)
    expected = [
        f"[{rank}]<stdout>:{local} {cross} True"
        for rank, (local, cross) in enumerate(
            (int(k), sum(int(other) > place for other in per_host.split(",")))
            for k in per_host.split(",")
            for place in range(int(k))
        )
    ]
    assert sorted(output.splitlines()) == expected


def train_on(per_host: str, version: int, *options: str) -> tuple[float, int]:
    """The demo with this many ranks per host: its accuracy, and the bytes sent between hosts."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    demo = ROOT / "examples" / "torch_digits.py"
    with NetworkHosts(per_host.count(",") + 1, version=version) as hosts:
        output = run_on(hosts, per_host, sys.executable, demo, "--epochs", DEMO_EPOCHS, *options)
    accuracy = re.search(r"accuracy (0\.\d+)", output)
    sent = re.search(r"([\d,]+) bytes went between hosts", output)
    assert accuracy is not None, output
    assert sent is not None, output
    return float(accuracy[1]), int(sent[1].replace(",", ""))


@pytest.mark.timeout(2 * PATIENCE_S)
def test_training() -> None:
    """The demo is as accurate as on one host; each gradient crosses between hosts once."""
    accuracy_on_one, sent_on_one = train_on("2", 4)
    accuracy, sent = train_on("1,2,1", 6)
    assert accuracy >= 0.94
    assert abs(accuracy - accuracy_on_one) <= 0.01
    assert sent_on_one == 0
    least = 2 * (3 - 1) * 4 * DEMO_PARAMETERS * DEMO_STEPS
    assert least <= sent <= 1.05 * least  # initial values are also sent


def test_training_with_adaptive_compression() -> None:
    """The demo learns as well; how much is compressed depends on the machine."""
    accuracy, sent = train_on("1,1", 4, "--compression", "adaptive")
    assert accuracy >= 0.94
    assert 0 < sent <= 1.05 * 2 * 4 * DEMO_PARAMETERS * DEMO_STEPS


# The bytes that left the host on each link; each host sends 4 MiB of data.
LINKS = """
import os
from pathlib import Path
import numpy as np
import horoscale.numpy as hvd

hvd.init()
hvd.allreduce(np.ones(1 << 20, np.float32))
hvd.barrier()  # the other host has it all
sent = [Path(f"/sys/class/net/{link}/statistics/tx_bytes").read_text() for link in ("eth0", "eth1")]
print(os.environ["HOROSCALE_RENDEZVOUS"].rsplit(":", 1)[0], *map(int, sent))
"""


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (("--network-interface", "eth1"), {}),
        ((), {"HOROSCALE_NETWORK_INTERFACE": "eth1"}),
    ],
    ids=["flag", "variable"],
)
def test_a_chosen_interface(flags: tuple[str, ...], variables: dict[str, str]) -> None:
    """All traffic uses it: the job's store, and the ranks' links."""
    with NetworkHosts(2, links=2) as hosts:
        output = run_on(hosts, "1,1", *flags, sys.executable, "-c", LINKS, variables=variables)
        lines = output.splitlines()
        assert len(lines) == 2
        for line in lines:
            address, eth0, eth1 = line.split(":", 1)[1].split()
            assert address == hosts.addresses_of[1][0]
            assert int(eth0) < 1 << 16
            assert int(eth1) > 4 << 20


def test_an_interface_that_is_not_there_is_named() -> None:
    program = "import horoscale.numpy as hvd; hvd.init()"
    with NetworkHosts(2) as hosts:
        job = start_on(hosts, "1,1", "--network-interface", "eth7", sys.executable, "-c", program)
    assert job.returncode == 1
    assert 'no such network interface: "eth7"' in job.stderr.splitlines()[-1]


SLOW = """
import time
import numpy as np
import horoscale.numpy as hvd

hvd.init()
hvd.barrier()
sent, began = hvd.metrics()["network_bytes_sent"], time.monotonic()
handles = [hvd.allreduce_async(np.full(250000, i + hvd.rank(), np.float32), op=hvd.Sum, name=str(i))
           for i in range(3)]
results = [hvd.synchronize(handle) for handle in handles]
seconds, sent = time.monotonic() - began, hvd.metrics()["network_bytes_sent"] - sent
members = sum(range(hvd.size()))
for i, result in enumerate(results):
    assert (result == i * hvd.size() + members).all()
print(sent, seconds)
"""


def test_a_slow_link_is_waited_for() -> None:
    with NetworkHosts(2) as hosts:
        hosts.limit_rate("20mbit")
        output = run_on(hosts, "1,1", sys.executable, "-c", SLOW)
    for line in output.splitlines():
        sent, seconds = map(float, line.split(":")[1].split())
        assert sent >= 3_000_000  # each sends half of its data, and its half of the sum
        assert seconds >= 0.9 * (8 * 3_000_000 - 8 * 65536) / 20e6  # the burst is not limited


def test_torchruns_variables_on_two_hosts() -> None:
    """Both ranks know only the first host's address, where torch's store is served."""
    pytest.importorskip("torch")
    program = "import horoscale.numpy as hvd; hvd.init(); print(hvd.allgather_object(hvd.rank()))"
    with NetworkHosts(2, version=6) as hosts:
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": "29500"}
        ranks = [
            subprocess.Popen(
                hosts.command(rank, sys.executable, "-c", program),
                env=environment() | shared | {"RANK": str(rank), "HOROSCALE_HOSTNAME": name},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, name in enumerate(hosts.names)
        ]
        for rank in ranks:
            out, err = rank.communicate(timeout=PATIENCE_S)
            assert out == "[0, 1]\n", err


# Two containers with equal host names, and how ranks see their places.
NAMED_ALIKE = """
import numpy as np
import horoscale.numpy as hvd

hvd.init()
assert hvd.allreduce(np.ones(100000), op=hvd.Sum, name="x").tolist() == [hvd.size()] * 100000
print(hvd.local_rank(), hvd.local_size(), hvd.cross_size(), hvd.metrics()["network_bytes_sent"] > 0)
"""


def places_of(prefixes: Sequence[Sequence[str]], rendezvous: str) -> list[tuple[str, str]]:
    """The stdout and stderr of ranks with equal HOSTNAMEs; one rank for each prefix."""
    variables = {
        "HOROSCALE_SIZE": str(len(prefixes)),
        "HOROSCALE_HOSTNAME": "node",
        "HOROSCALE_RENDEZVOUS": rendezvous,
        "HOROSCALE_SECRET": secrets.token_hex(16),
    }
    ranks = [
        subprocess.Popen(
            [*prefix, sys.executable, "-c", NAMED_ALIKE],
            env=environment() | variables | {"HOROSCALE_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, prefix in enumerate(prefixes)
    ]
    said = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), said
    return said


def test_containers_of_one_name_are_hosts() -> None:
    """Each has its own network: their ranks can't share memory, and the first rank reports it."""
    with NetworkHosts(2) as hosts:
        prefixes = [hosts.command(host) for host in (0, 1, 0, 1, 1)]
        said = places_of(prefixes, f"{hosts.addresses[0]}:29500")
    places = ("0 2 2", "0 3 2", "1 2 2", "1 3 2", "2 3 1")
    assert [out for out, _ in said] == [f"{place} True\n" for place in places]
    notice = 'rank 0 and rank {} report the same host name, "node", but can\'t share memory'
    assert notice.format(1) in said[1][1]
    assert [rank for rank, (_, err) in enumerate(said) if "same host name" in err] == [1]


def test_containers_with_one_network_share_memory() -> None:
    """Whichever other resources they don't share: /dev/shm, processes, IPC."""
    with NetworkHosts(1) as hosts:
        own = ("unshare", "--mount", "--ipc", "--pid", "--fork", "--mount-proc")
        shm = ("sh", "-c", 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"', "sh")
        prefixes = [hosts.command(0), hosts.command(0, *own, *shm), hosts.command(0, *own, *shm)]
        said = places_of(prefixes, f"{hosts.addresses[0]}:29500")
    assert [out for out, _ in said] == [f"{rank} 3 1 False\n" for rank in range(3)]


@pytest.mark.parametrize("how", ["killed", "cut-off"])
def test_survivors_of_a_lost_host(how: str) -> None:
    """The ranks of the other host soon raise, and name only ranks that are lost."""
    with NetworkHosts(2) as hosts:
        listed = ",".join(f"{name}:2" for name in hosts.names)
        variables = {"HOROSCALE_NETWORK_TIMEOUT_SECONDS": str(TIMEOUT_S)}
        flags = ("--remote-shell", namespaces.REMOTE_SHELL, "-np", 4, "-H", listed)
        program = (sys.executable, "-c", SURVIVE)
        with Launcher(*flags, *program, env=variables, prefix=hosts.command(0)) as job:
            job.read_lines(4)  # ready
            if how == "killed":
                for pid in hosts.processes(1):
                    if SURVIVE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        subprocess.run(["kill", "-9", str(pid)], check=False)
            else:
                hosts.pull_cable(1)
            _, out, _ = job.finish()
    told = {int(line[1:2]): json.loads(line.split(b">:")[1]) for line in out.splitlines()}
    # Neither side of a cut cable knows that the other one is lost. The last killed rank may have
    # time to report the loss of the first.
    survivors = [0, 1] if how == "killed" else [0, 1, 2, 3]
    assert set(survivors) <= told.keys()
    for rank in survivors:
        seconds, ranks = told[rank]
        assert ranks
        assert set(ranks) <= ({2, 3} if rank < 2 else {0, 1})
        assert seconds < (1.0 if how == "killed" else TIMEOUT_S)
