"""horoscalerun: the command line."""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from horoscale._version import __version__
from horoscale.engines.batch import Allocation, BatchError
from horoscale.engines.batch_systems import find_allocation
from horoscale.runner import (
    control,
    elastic_options,
    environment,
    hosts,
    mpirun,
    processes,
    reach,
    remote,
    settings,
    usage,
)
from horoscale.runner.bootstrap import PACKAGE_ROOT
from horoscale.runner.pulse import DEFAULT_TIMEOUT_S, MIN_TIMEOUT_S
from horoscale.runner.report import CANNOT_START, LAUNCHER
from horoscale.runner.watching import LOOPBACK, TOKEN_VARIABLE, StatusSpec

if TYPE_CHECKING:
    from horoscale.runner.job import Job, JobSpec
    from horoscale.runner.results import ResultWriter

DEFAULT_GRACE_S = 10.0
DEFAULT_START_TIMEOUT_S = 60.0
_SHOWN_HOSTS = 8  # in an error
COMPAT_DIRECTORY = Path(PACKAGE_ROOT) / "horoscale" / "compat"

# Flags that are accepted but not supported yet: attribute, flag, what is missing.
_MISSING = (("tcp", "--tcp", "an MPI with this option; pass your MPI's own with --mpi-args"),)

# Flags that only our own launcher supports, and flags that only mpirun supports.
_NOT_WITH_MPI = (
    ("gloo", "--gloo"),
    ("output_filename", "--output-filename"),
    ("prefix_output_with_timestamp", "--prefix-output-with-timestamp"),
    ("torch_env", "--torch-env"),
    ("grace_seconds", "--grace-seconds"),
    ("ssh_port", "--ssh-port"),
    ("ssh_identity_file", "--ssh-identity-file"),
    ("remote_shell", "--remote-shell"),
    ("status_port", "--status-port"),
    ("status_address", "--status-address"),
)
_ONLY_WITH_MPI = (("mpi_args", "--mpi-args"), ("binding_args", "--binding-args"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the command line describes; return the exit status."""
    parser = make_parser()
    parsed, unknown = parser.parse_known_args(arguments)
    _open_standard_streams()
    if parsed.parent is not None:
        processes.die_with_parent(parsed.parent, signal.SIGTERM)
    try:
        if unknown:
            raise usage.UsageError(_unknown_option(unknown[0], parser))
        if parsed.check_build:
            from horoscale.runner.check_build import describe

            print(describe(), end="")
            return 0
        if parsed.status or parsed.drain is not None:
            elastic_options.ask(parsed, sys.stdout.write)
            return 0
        return _run(parsed)
    except (
        usage.UsageError,
        BatchError,
        control.ControlError,
        environment.ExportError,
        hosts.HostsError,
        mpirun.MpirunError,
        settings.SettingsError,
    ) as error:
        message = f"{LAUNCHER}: error: {error}\n"
        if parsed.results is None:
            sys.stderr.write(message)
        else:
            _result_writer(parsed.results).finish(message.encode())
        return CANNOT_START
    except KeyboardInterrupt:  # before the job handles signals
        return 128 + signal.SIGINT


def _open_standard_streams() -> None:
    """Reopen standard streams that the caller has closed, so no socket gets their numbers."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def make_parser() -> argparse.ArgumentParser:
    """Return the parser for the flags of horoscalerun."""
    parser = argparse.ArgumentParser(
        prog=LAUNCHER,
        allow_abbrev=False,
        usage="%(prog)s -np N [options] command [arguments]",
        description="Run a command on the ranks of a job. Options must precede the command.",
    )
    add = parser.add_argument
    switch = argparse.BooleanOptionalAction
    add("-v", "--version", action="version", version=__version__)
    add("-np", "--num-proc", metavar="N", help="the number of ranks to start")
    add("-cb", "--check-build", action="store_true", help="list the features of this installation")
    add("-H", "--hosts", metavar="HOST:SLOTS,…", help="the hosts, and the number of ranks on each")
    add(
        "-hostfile",
        "--hostfile",
        metavar="FILE",
        help="a file with a line `host slots=N` for each host",
    )
    add(
        "-x",
        dest="exports",
        action="append",
        default=[],
        metavar="VAR[=VALUE]",
        help="forward a variable to ranks on other hosts, or set it for all ranks; repeatable",
    )
    add("-p", "--ssh-port", metavar="PORT", help="the port of ssh on the other hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="ssh's key")
    add(
        "--remote-shell",
        metavar="CMD",
        help="the command to use instead of ssh, run as `CMD host program arguments`",
    )
    add("--gloo", action="store_true", help="use the native backend (default)")
    add("--mpi", action="store_true", default=None, help="let mpirun start the ranks")
    add("--mpi-args", metavar="ARGS", help="additional arguments for mpirun, quoted as one word")
    add("--binding-args", metavar="ARGS", help="arguments for mpirun that replace --bind-to none")
    add(
        "--compat",
        action=switch,
        help="provide Horovod's module names to the ranks: `import horovod.torch`",
    )
    add(
        "--torch-env",
        action=switch,
        help="set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, … for torch.distributed as well",
    )
    add("--config-file", metavar="FILE", help="a YAML file with settings; flags take precedence")
    add(
        "--output-filename", metavar="DIR", help="also write output to DIR/rank.N/stdout and stderr"
    )
    add(
        "--prefix-output-with-timestamp",
        action=switch,
        help="prefix the ranks' output lines with the time",
    )
    add(
        "--grace-seconds",
        metavar="S",
        help=f"seconds for ranks to end before they are killed (default {DEFAULT_GRACE_S:g})",
    )
    add("--verbose", action=switch, help="log what the launcher does")
    add(
        "--status-port",
        metavar="PORT",
        help="serve the job's status page, JSON and metrics on this port; 0: a free port",
    )
    add(
        "--status-address",
        metavar="ADDRESS",
        help=f"the address to serve them on (default {LOOPBACK}: local users only)",
    )
    settings.add_arguments(parser)
    elastic_options.add_arguments(parser)
    later = parser.add_argument_group("not available yet")
    later.add_argument("--tcp", action=switch)
    # Used by horoscale.run() to pass its function and get the results.
    add("--parent", type=int, help=argparse.SUPPRESS)
    add("--task", type=int, help=argparse.SUPPRESS)
    add("--results", type=int, help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _unknown_option(given: str, parser: argparse.ArgumentParser) -> str:
    """Return the message for an unknown option."""
    name = given.partition("=")[0]
    known = [
        flag
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        for flag in action.option_strings
    ]
    similar = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {similar[0]}?" if similar else f"{LAUNCHER} --help lists the options"
    return f"there is no option {name}: {advice}"


def _run(arguments: argparse.Namespace) -> int:
    for name, flag, missing in _MISSING:
        if getattr(arguments, name) not in (None, False):
            raise usage.UsageError(f"{flag} needs a feature that is not available yet: {missing}")
    elastic = elastic_options.wanted(arguments)
    allocation = _allocation(arguments)
    size = 1 if elastic else _size(arguments, allocation)
    inherited = _with_compat(os.environ) if arguments.compat else dict(os.environ)
    config = settings.read_config(arguments.config_file) if arguments.config_file else {}
    variables = settings.variables(arguments, config)
    exports = environment.exported(arguments.exports, inherited)
    job_environment = environment.job_environment(inherited, variables, exports)
    elastic_options.check_checkpoints(job_environment)
    command = _words(arguments.command)
    if elastic:
        for unfit, flag in ((arguments.mpi, "--mpi"), (arguments.torch_env, "--torch-env")):
            if unfit:
                raise usage.UsageError(
                    f"{flag} and {elastic} cannot be combined: ranks would not change"
                )
    if arguments.mpi:
        _check_command(command, inherited.get("PATH"))
        return _run_mpirun(arguments, size, inherited, variables, exports, command)
    for name, flag in _ONLY_WITH_MPI:
        if getattr(arguments, name) is not None:
            raise usage.UsageError(f"{flag} is an argument for mpirun: it needs --mpi")
    machines = _machines(arguments, size, allocation)
    away = machines.remote or arguments.host_discovery_script is not None
    if not away:
        elastic_options.check_resumable(job_environment)
    places = [] if elastic else hosts.place_ranks(machines.hosts, size)
    if not machines.remote:
        _check_command(command, inherited.get("PATH"))
    task, results = None, None
    if arguments.task is not None:
        from horoscale.runner.task import read_all

        task, results = read_all(arguments.task), _result_writer(arguments.results)
    try:
        from horoscale.runner.job import Job, JobSpec
    except ImportError as error:
        raise usage.UsageError(
            f"cannot load horoscale's core ({error}): reinstall horoscale"
        ) from None

    if away:
        _say_what_is_withheld(environment.withheld(inherited, exports))
    interfaces = _interfaces(job_environment)
    spec = JobSpec(
        command=command,
        places=places,
        commands=machines.commands,
        addresses=reach.own_addresses(interfaces) if away else [reach.LOOPBACK],
        environment=job_environment,
        directory=os.getcwd(),
        grace_s=usage.seconds("--grace-seconds", arguments.grace_seconds, DEFAULT_GRACE_S),
        start_timeout_s=_start_timeout(job_environment),
        encrypt=environment.encrypts(job_environment),
        output_directory=Path(arguments.output_filename) if arguments.output_filename else None,
        timestamp=bool(arguments.prefix_output_with_timestamp),
        verbose=bool(arguments.verbose),
        full_tracebacks=_full_tracebacks(job_environment),
        torch_environment=bool(arguments.torch_env),
        task=task,
        on_result=None if results is None else results.add,
        status=StatusSpec.parse(
            arguments.status_port,
            arguments.status_address,
            os.environ.get(TOKEN_VARIABLE),
        ),
    )
    job = _elastic_job(arguments, spec, allocation) if elastic else Job(spec)
    status = job.run()
    if results is not None:
        results.finish(job.report)
    return status


def _elastic_job(
    arguments: argparse.Namespace, spec: JobSpec, allocation: Allocation | None
) -> Job:
    from horoscale.runner.elastic_job import ElasticJob
    from horoscale.runner.elastic_spec import ElasticSpec

    rules = elastic_options.parse_rules(arguments, spec.grace_s)
    given = _given_hosts(arguments)
    if not given and allocation is not None:
        given = _hosts_of(allocation)
    fixed, slots = elastic_options.parse_hosts(arguments, rules, given, hosts.own_name())
    shell = _remote_shell(arguments, allocation)
    return ElasticJob(
        spec,
        ElasticSpec(
            rules=rules,
            hosts=fixed,
            script=arguments.host_discovery_script,
            slots_per_host=slots,
            command_of=lambda name: remote.supervisor_command(name, shell),
            network_timeout_s=_network_timeout(spec.environment),
        ),
    )


def _run_mpirun(
    arguments: argparse.Namespace,
    size: int,
    inherited: Mapping[str, str],
    variables: Mapping[str, str],
    exports: Mapping[str, str],
    command: Sequence[str],
) -> int:
    for name, flag in _NOT_WITH_MPI:
        if getattr(arguments, name) not in (None, False):
            raise usage.UsageError(
                f"{flag} and --mpi cannot be combined; pass mpirun's own options with --mpi-args"
            )
    program = mpirun.find(inherited.get("PATH"))
    job_environment = mpirun.job_environment(program, {**inherited, **exports}, variables)
    given = _given_hosts(arguments)
    if given and not arguments.mpi_args:  # with --mpi-args, the user may pass any options
        _say_what_is_withheld(mpirun.withheld(program, job_environment, exports))

    def words(environment: Mapping[str, str]) -> list[str]:
        return mpirun.command_line(
            program,
            size,
            given,
            environment,
            command,
            exports=exports,
            mpi_args=arguments.mpi_args or "",
            binding_args=arguments.binding_args,
        )

    if arguments.task is None:
        verbose = bool(arguments.verbose)
        return mpirun.replace_process(words(job_environment), job_environment, verbose)
    from horoscale.runner import mpirun_task
    from horoscale.runner.task import read_all

    return mpirun_task.run(
        words,
        job_environment,
        size,
        read_all(arguments.task),
        _result_writer(arguments.results),
        interfaces=_interfaces(job_environment) if given else None,
    )


def _say_what_is_withheld(names: Sequence[str]) -> None:
    if names:
        sys.stderr.write(
            f"{LAUNCHER}: not forwarded to other hosts, because their names look like those of "
            f"credentials: {', '.join(names)}; use -x NAME to forward one\n"
        )


def _interfaces(job_environment: Mapping[str, str]) -> list[str]:
    """Return the network interfaces chosen by the user."""
    given = environment.read_by_ranks(job_environment, "NETWORK_INTERFACE") or ""
    return [name for name in given.split(",") if name]


def _start_timeout(job_environment: Mapping[str, str]) -> float:
    """Return the seconds that hosts, and then ranks, have to start."""
    given = environment.read_by_ranks(job_environment, "START_TIMEOUT")
    return usage.seconds("START_TIMEOUT", given, DEFAULT_START_TIMEOUT_S)


def _network_timeout(job_environment: Mapping[str, str]) -> float:
    """Return the seconds after which an unresponsive host counts as lost."""
    given = environment.read_by_ranks(job_environment, "NETWORK_TIMEOUT_SECONDS")
    seconds = usage.seconds("NETWORK_TIMEOUT_SECONDS", given, DEFAULT_TIMEOUT_S)
    return max(MIN_TIMEOUT_S, seconds)  # the ranks reject less


def _full_tracebacks(job_environment: Mapping[str, str]) -> bool:
    """Return whether to show each rank's traceback, with horoscale's own frames."""
    text = environment.read_by_ranks(job_environment, "FULL_TRACEBACK") or "0"
    if text not in ("0", "1"):
        raise usage.UsageError(f"FULL_TRACEBACK={text!r} is neither 1 nor 0")
    return text == "1"


def _result_writer(descriptor: int) -> ResultWriter:
    from horoscale.runner.results import ResultWriter

    return ResultWriter(descriptor)


def _parse_size(text: str | None) -> int:
    if text is None:
        raise usage.UsageError("how many ranks? Give -np N")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1_000_000:
        raise usage.UsageError(f"-np: expected a positive number, not {text!r}")
    return int(text)


def _words(command: Sequence[str]) -> list[str]:
    words = list(command)
    if words[:1] == ["--"]:
        del words[0]
    if not words:
        raise usage.UsageError(f"no command: {LAUNCHER} -np N python train.py")
    return words


def _check_command(words: Sequence[str], path: str | None) -> None:
    program = words[0]
    if shutil.which(program, path=path) is not None:
        return
    if os.path.isdir(program):
        raise usage.UsageError(f"{program!r} is a directory")
    if os.path.isfile(program):
        raise usage.UsageError(
            f"{program!r} is not an executable program: run it through its interpreter "
            f"(python {program}) or make it executable (chmod +x {program})"
        )
    raise usage.UsageError(f"command not found: {program!r}")


def _given_hosts(arguments: argparse.Namespace) -> list[hosts.Host]:
    if arguments.hosts and arguments.hostfile:
        raise usage.UsageError("give -H or --hostfile, not both")
    if arguments.hosts:
        return list(hosts.parse_hosts(arguments.hosts))
    return list(hosts.parse_hostfile(arguments.hostfile)) if arguments.hostfile else []


def _allocation(arguments: argparse.Namespace) -> Allocation | None:
    """Return the batch job whose nodes this job may use; None if mpirun queries it itself."""
    if arguments.mpi or arguments.host_discovery_script is not None:
        return None
    return find_allocation(os.environ)


def _hosts_of(allocation: Allocation) -> list[hosts.Host]:
    return [hosts.Host(name, slots) for name, slots in allocation.slots.items()]


def _size(arguments: argparse.Namespace, allocation: Allocation | None) -> int:
    """Return the number of ranks: -np, or all slots of a batch job."""
    if allocation is None or arguments.hosts or arguments.hostfile:
        return _parse_size(arguments.num_proc)
    slots = sum(allocation.slots.values())
    size = slots if arguments.num_proc is None else _parse_size(arguments.num_proc)
    if size > slots:
        raise usage.UsageError(
            f"-np {size} is more than the {slots} slots that {allocation.system} has allocated to "
            f"this job ({_listing(allocation)}); {allocation.more}"
        )
    return size


def _listing(allocation: Allocation) -> str:
    shown = [f"{name}:{slots}" for name, slots in allocation.slots.items()]
    more = len(shown) - _SHOWN_HOSTS
    return ", ".join(shown[:_SHOWN_HOSTS]) + (f" and {more} more nodes" if more > 0 else "")


def _machines(
    arguments: argparse.Namespace, size: int, allocation: Allocation | None
) -> remote.Machines:
    given = _given_hosts(arguments)
    if not given:
        own = [hosts.Host(hosts.own_name(), size)]
        given = own if allocation is None else _hosts_of(allocation)
    return remote.resolve_hosts(given, _remote_shell(arguments, allocation))


def _remote_shell(
    arguments: argparse.Namespace, allocation: Allocation | None
) -> remote.RemoteShell:
    port = arguments.ssh_port
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise usage.UsageError(f"--ssh-port: expected a port, not {port!r}")
    return remote.RemoteShell(
        command=arguments.remote_shell,
        ssh_port=None if port is None else int(port),
        identity_file=arguments.ssh_identity_file,
        allocation=allocation,
    )


def _with_compat(inherited: Mapping[str, str]) -> dict[str, str]:
    variables = {**inherited, "HOROSCALE_PYTHON": sys.executable}
    variables = environment.with_path_first(variables, "PYTHONPATH", str(COMPAT_DIRECTORY / "path"))
    return environment.with_path_first(variables, "PATH", str(COMPAT_DIRECTORY / "bin"))
