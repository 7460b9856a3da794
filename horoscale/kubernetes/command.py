"""The commands of the launcher pod and of the worker pods."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from horoscale._core import job_secret
from horoscale.engines.agents.agent import AgentError, Invitation, Seat, Unreachable, serve
from horoscale.engines.agents.driver import Agents, AgentsError
from horoscale.kubernetes.pods import ClusterError, Pods, PodWatch
from horoscale.runner import processes
from horoscale.runner.bootstrap import python_command

PORT = 29400
_WAIT_S = 600.0  # for the launcher's pod to start
_AGAIN_S = 1.0
_FAILED = 1
_USAGE_ERROR = 2


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m horoscale.kubernetes",
        description="Runs elastic jobs on the pods of a cluster; HOROSCALE_SECRET_FILE is the same "
        "for all of them.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    launch = commands.add_parser("launch", help="run a job's launcher, in a pod")
    launch.add_argument("--selector", required=True, help="the labels of the worker pods")
    launch.add_argument("--namespace", help="theirs; this pod's if not given")
    launch.add_argument("--port", type=int, default=PORT, help="for the workers (%(default)s)")
    launch.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="horoscalerun's options and the command"
    )
    work = commands.add_parser("work", help="let the launcher run ranks in this pod")
    work.add_argument("launcher", metavar="HOST[:PORT]", help="the launcher's service")
    work.add_argument("--slots", type=int, default=1, help="how many ranks (%(default)s)")
    work.add_argument(
        "--wait", type=float, default=_WAIT_S, help="seconds for the launcher (%(default)g)"
    )
    parsed = parser.parse_args(arguments)
    try:
        secret = job_secret()
        if not secret:
            raise AgentsError("there is no secret: set HOROSCALE_SECRET_FILE for all pods")
        if parsed.command == "launch":
            words = parsed.arguments[1:] if parsed.arguments[:1] == ["--"] else parsed.arguments
            return _launch(parsed.selector, parsed.namespace, parsed.port, secret, words)
        host, _, port = parsed.launcher.partition(":")
        return _work((host, int(port or PORT)), secret, parsed.slots, parsed.wait)
    except (AgentsError, AgentError, ClusterError, RuntimeError, ValueError) as error:
        sys.stderr.write(f"horoscale.kubernetes: {error}\n")
        return _FAILED


def _launch(
    selector: str, namespace: str | None, port: int, secret: str, words: Sequence[str]
) -> int:
    """Run horoscalerun on the pods, forwarding SIGTERM; return its exit status."""
    pods = Pods(selector, namespace)
    pods.usable()  # raises an API error before the job starts
    agents = Agents(secret=secret, port=port)
    agents.admit(set())
    watch = PodWatch(
        pods, agents.admit, lambda text: print(f"horoscale.kubernetes: {text}", file=sys.stderr)
    )
    environment = {name: value for name, value in os.environ.items() if name not in _OF_THE_JOB}
    discovery = ["--host-discovery-script", agents.discovery, "--remote-shell", agents.shell]
    parent = os.getpid()
    try:
        launcher = subprocess.Popen(
            python_command("horoscale.runner.launch", *discovery, *words),
            env=environment,
            preexec_fn=lambda: processes.die_with_parent(parent, signal.SIGTERM),
        )
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, lambda signum, _: launcher.send_signal(signum))
        status = launcher.wait()
        return 128 - status if status < 0 else status
    finally:
        watch.close()
        agents.close()


# The launcher creates a separate secret for the ranks.
_OF_THE_JOB = ("HOROSCALE_SECRET", "HOROSCALE_SECRET_FILE", "HOROVOD_SECRET", "HOROVOD_SECRET_FILE")


def _work(launcher: tuple[str, int], secret: str, slots: int, seconds: float) -> int:
    """Run the agent of this pod until the job is over."""
    invitation = Invitation((launcher[0],), launcher[1], secret)
    seat = Seat(os.environ.get("HOSTNAME") or socket.gethostname(), 0, slots=slots)
    for name in _OF_THE_JOB:
        os.environ.pop(name, None)
    # SIGTERM has no default action in a container's first process. serve() has its own handler.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    deadline = time.monotonic() + seconds
    while True:
        try:
            serve(invitation, seat, drain=True)
            return 0
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)
