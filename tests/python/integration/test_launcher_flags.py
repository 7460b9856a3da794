"""Flags and configuration files become the ranks' variables, or a clear error."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from launcher_process import run_launcher

import horoscale
from horoscale.runner import launch, settings


def variables(*flags: str, config: str | None = None, folder: Path | None = None) -> dict[str, str]:
    """The variables that the launcher would set for these flags."""
    arguments = launch.make_parser().parse_args(["-np", "1", *flags, "true"])
    read = {}
    if config is not None:
        assert folder is not None
        (folder / "config.yaml").write_text(config)
        read = settings.read_config(str(folder / "config.yaml"))
    return settings.variables(arguments, read)


@pytest.mark.parametrize(
    ("flags", "variable", "value"),
    [
        ("--fusion-threshold-mb 64", "FUSION_THRESHOLD", "67108864"),
        ("--fusion-threshold-mb 0.5", "FUSION_THRESHOLD", "524288"),
        ("--fusion-threshold-mb 0", "FUSION_THRESHOLD", "0"),
        ("--cycle-time-ms 2.5", "CYCLE_TIME", "2.5"),
        ("--cache-capacity 2048", "CACHE_CAPACITY", "2048"),
        ("--disable-cache", "CACHE_CAPACITY", "0"),
        ("--hierarchical-allreduce", "HIERARCHICAL_ALLREDUCE", "1"),
        ("--no-hierarchical-allreduce", "HIERARCHICAL_ALLREDUCE", "0"),
        ("--hierarchical-allgather", "HIERARCHICAL_ALLGATHER", "1"),
        ("--no-hierarchical-allgather", "HIERARCHICAL_ALLGATHER", "0"),
        ("--no-autotune", "AUTOTUNE", "0"),
        ("--timeline-filename /tmp/t.json", "TIMELINE", "/tmp/t.json"),
        ("--timeline-mark-cycles", "TIMELINE_MARK_CYCLES", "1"),
        ("--no-timeline-mark-cycles", "TIMELINE_MARK_CYCLES", "0"),
        ("--no-stall-check", "STALL_CHECK_DISABLE", "1"),
        ("--stall-check", "STALL_CHECK_DISABLE", "0"),
        ("--stall-check-warning-time-seconds 5", "STALL_CHECK_TIME_SECONDS", "5"),
        ("--stall-check-shutdown-time-seconds 50", "STALL_SHUTDOWN_TIME_SECONDS", "50"),
        ("--log-level DEBUG", "LOG_LEVEL", "debug"),
        ("--log-hide-timestamp", "LOG_HIDE_TIME", "1"),
        ("--no-log-hide-timestamp", "LOG_HIDE_TIME", "0"),
        ("--log-without-timestamp", "LOG_HIDE_TIME", "1"),
        ("--log-with-timestamp", "LOG_HIDE_TIME", "0"),
        ("--start-timeout 7", "START_TIMEOUT", "7"),
        ("--gradients-ready backward", "GRADIENTS_READY", "backward"),
        ("--checkpoint-dir /data/../run", "CHECKPOINT_DIR", "/run"),
        ("--checkpoint-every 1.5m", "CHECKPOINT_EVERY", "1.5m"),
        ("--checkpoint-every 100", "CHECKPOINT_EVERY", "100"),
        ("--resume /run", "RESUME", "/run"),
        ("--network-interface eth0", "NETWORK_INTERFACE", "eth0"),
        ("--network-interfaces eth0,ib0", "NETWORK_INTERFACE", "eth0,ib0"),
    ],
)
def test_a_flag_sets_its_variable(flags: str, variable: str, value: str) -> None:
    assert variables(*flags.split()) == {variable: value}


def test_nothing_is_set_that_was_not_given() -> None:
    assert variables() == {}
    assert variables("--no-disable-cache") == {}


CONFIG = """\
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
  cache_capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: false
autotune:
  enabled: false
timeline:
  filename: horoscale_timeline.json
  mark_cycles: true
stall_check:
  enabled: false
  warning_time_seconds: 120
  shutdown_time_seconds: 240
logging:
  level: INFO
  hide_timestamp: true
checkpoints:
  dir: /run
  every: 100
  resume: /run
library_options:
"""


def test_a_configuration_file_sets_them_all(tmp_path: Path) -> None:
    assert variables(config=CONFIG, folder=tmp_path) == {
        "FUSION_THRESHOLD": "33554432",
        "CYCLE_TIME": "10",
        "CACHE_CAPACITY": "2048",
        "HIERARCHICAL_ALLREDUCE": "1",
        "HIERARCHICAL_ALLGATHER": "0",
        "AUTOTUNE": "0",
        "TIMELINE": "horoscale_timeline.json",
        "TIMELINE_MARK_CYCLES": "1",
        "STALL_CHECK_DISABLE": "1",
        "STALL_CHECK_TIME_SECONDS": "120",
        "STALL_SHUTDOWN_TIME_SECONDS": "240",
        "LOG_LEVEL": "info",
        "LOG_HIDE_TIME": "1",
        "CHECKPOINT_DIR": "/run",
        "CHECKPOINT_EVERY": "100",
        "RESUME": "/run",
    }


@pytest.mark.parametrize("word", ["off", "OFF", "'off'"])
def test_a_file_may_turn_the_log_off(tmp_path: Path, word: str) -> None:
    """YAML reads an unquoted off as false."""
    read = variables(config=f"logging: {{level: {word}}}", folder=tmp_path)
    assert read == {"LOG_LEVEL": "off"}


def test_flags_go_before_the_file_and_the_file_before_the_environment(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("params: {cache_capacity: 5, cycle_time_ms: 3}")
    job = run_launcher(
        "-np", 1, "--config-file", tmp_path / "config.yaml", "--cache-capacity", 7,
        "sh", "-c", "echo $HOROSCALE_CACHE_CAPACITY $HOROSCALE_CYCLE_TIME $HOROSCALE_LOG_LEVEL",
        env={"HOROSCALE_CYCLE_TIME": "9", "HOROSCALE_LOG_LEVEL": "error"},
    )  # fmt: skip
    assert job.stdout == b"[0]<stdout>:7 3 error\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params: [", "can't read the configuration file"),
        ("just text", "expected sections (params, autotune"),
        ("parms: {}", "unknown section 'parms'; the sections are params, "),
        ("params: 5", "section 'params' is not a mapping"),
        ("params: {fusion: 5}", "unknown key params.fusion; the keys are fusion_threshold_mb"),
        ("params: {cache_capacity: many}", "params.cache_capacity: expected a whole number"),
        ("params: {cache_capacity: [1]}", "params.cache_capacity: can't be [1]"),
        ("params: {cache_capacity: true}", "params.cache_capacity: can't be True"),
        ("stall_check: {enabled: 1}", "stall_check.enabled: expected true or false, not 1"),
        ("logging: {level: loud}", "logging.level: expected one of trace, debug"),
        ("logging: {level: on}", "logging.level: can't be True"),
        ("timeline: {filename: off}", "timeline.filename: can't be False"),
    ],
)
def test_a_bad_configuration_file_is_explained(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(settings.SettingsError) as error:
        variables(config=text, folder=tmp_path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("true", "how many ranks? Give -np N"),
        ("-np 0 true", "-np: expected a positive number, not '0'"),
        ("-np abc true", "-np: expected a positive number, not 'abc'"),
        ("-np -3 true", "expected"),
        ("-np 2", "no command"),
        ("-np 2 --", "no command"),
        ("-np 2 --no-such-flag true", "there is no option --no-such-flag: horoscalerun --help"),
        ("-np 2 --compt true", "there is no option --compt: did you mean --compat?"),
        ("-np 2 --timeline-file=t true", "--timeline-file: did you mean --timeline-filename?"),
        ("-np 2 --no-autotun true", "did you mean --no-autotune?"),
        ("-np 2 --fusion-treshold-mb 64 true", "did you mean --fusion-threshold-mb?"),
        ("-np 2 --mpi --torch-env true", "--torch-env and --mpi cannot be combined"),
        ("-np 3 -H localhost:2 true", "-np 3 needs 3 slots, the hosts have 2 (localhost:2)"),
        ("-np 2 -H localhost:x true", "slots must be a positive number, not 'x'"),
        ("-np 2 -H localhost:0 true", "slots must be a positive number, not '0'"),
        ("-np 2 -H a:b:c true", "slots must be a positive number, not 'b:c'"),
        ("-np 2 -H :2 true", "':2' is not host:slots"),
        ("-np 2 -H , true", "no host in ','"),
        ("-np 2 -H localhost:2 --hostfile /x true", "not both"),
        ("-np 2 --hostfile /nonexistent true", "can't read the host file /nonexistent"),
        ("-np 2 -H -oProxyCommand=x:2 true", "expected one argument"),
        ("-np 2 -H a,-oProxyCommand=x:2 true", "'-oProxyCommand=x' is not the name of a host"),
        ("-np 2 --grace-seconds soon true", "--grace-seconds: expected a number of seconds"),
        ("-np 2 --cache-capacity -1 true", "--cache-capacity: expected a whole number of at least"),
        ("-np 2 --cycle-time-ms nan true", "--cycle-time-ms: expected a number of at least 0"),
        ("-np 2 --log-level loud true", "--log-level: expected one of trace, debug"),
        ("-np 2 --config-file /nonexistent true", "can't read the configuration file"),
        ("-np 2 --mpi --grace-seconds 3 true", "--grace-seconds and --mpi cannot be combined"),
        ("-np 2 --mpi-args=-x true", "--mpi-args is an argument for mpirun"),
        ("-np 2 --tcp true", "--tcp needs a feature that is not available yet"),
        ("-np 2 -p ssh true", "--ssh-port: expected a port, not 'ssh'"),
        ("-np 2 -p 0 true", "--ssh-port: expected a port, not '0'"),
        ("-np 2 -p 22 --remote-shell rsh true", "ports and identity files apply to ssh"),
        ("-np 2 -i key --remote-shell rsh true", "ports and identity files apply to ssh"),
        ("-np 2 --remote-shell= true", "--remote-shell: expected a command such as 'ssh -q'"),
        ("-np 2 --remote-shell ' true", '--remote-shell "\'": No closing quotation'),
        ("-np 2 --mpi --remote-shell rsh true", "--remote-shell and --mpi cannot be combined"),
        ("-np 2 -x A-B true", "-x: 'A-B' is not the name of a variable"),
        ("-np 2 -x NOT_SET_ANYWHERE true", "-x NOT_SET_ANYWHERE: the variable is not set"),
        ("-np 2 --min-np 3 true", "--min-np 3 is more than -np 2"),
        ("-np 2 --max-num-proc 0 true", "--max-np: expected a number from 1 to 1048576"),
        ("--max-np 2 true", "Give -np N or --min-np N"),
        ("-np 2 --min-np 1 --mpi true", "--mpi and --min-np cannot be combined"),
        (
            "-np 2 --host-discovery-script x -H a:2 true",
            "give --host-discovery-script, or -H or --hostfile, not both",
        ),
        ("-np 2 --elastic-timeout soon true", "--elastic-timeout: expected a number of seconds"),
        ("-np 2 --reset-limit -1 true", "--reset-limit: expected a number from 0 to"),
        ("-np 2 --blacklist-cooldown-range 3 2 true", "expected 0 < LOW <= HIGH, not 3 2"),
        ("-np 2 --checkpoint-every soon true", "--checkpoint-every: 'soon' is neither a time such"),
        ("-np 2 --checkpoint-every 5m true", "--checkpoint-every needs --checkpoint-dir DIR"),
        ("-np 2 --checkpoint-dir= true", "--checkpoint-dir: expected a value, not an empty one"),
        ("-np 2 --resume /nonexistent true", "--resume: there is no checkpoint in /nonexistent"),
        ("--status --job 4194304", "no elastic job "),
        ("-np 2 --num-nccl-streams 2 true", "NCCL"),
        ("-np 2 --thread-affinity 0,1 true", "needs a feature that is not available yet"),
    ],
)
def test_what_can_not_be_is_explained(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):  # argparse's own error
        sys.exit(launch.main(arguments.split()))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("horoscalerun: error: ")
    assert message in err
    assert "Traceback" not in err


def test_errors_of_the_command_line_end_the_process_with_status_2() -> None:
    job = run_launcher("-np", "abc", "true")
    assert (job.returncode, job.stdout) == (2, b"")
    assert job.stderr == b"horoscalerun: error: -np: expected a positive number, not 'abc'\n"


def test_check_build_where_a_framework_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            raise ModuleNotFoundError('no torch', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    job = run_launcher("--check-build", env={"PYTHONPATH": path})
    assert job.returncode == 0, job.stderr
    assert b"[ ] PyTorch: not installed; pip install torch" in job.stdout


def test_check_build_tells_what_there_is_and_what_to_do() -> None:
    job = run_launcher("--check-build")
    assert (job.returncode, job.stderr) == (0, b"")
    lines = job.stdout.decode().splitlines()
    assert lines[0] == f"horoscale v{horoscale.__version__}:"
    for title in ("Frameworks", "Engines", "Controllers", "Tensor Operations"):
        assert f"Available {title}:" in lines
    items = [line for line in lines if line.startswith("    [")]
    assert all(": " in item for item in items if item.startswith("    [ ]"))
    assert any("numpy" in item for item in items)


@pytest.mark.parametrize("there", [True, False], ids=["there", "missing"])
def test_check_build_tells_which_engines_there_are(tmp_path: Path, there: bool) -> None:
    modules = ("ray", "pyspark", "distributed", "kubernetes")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name in {() if there else modules}:\n"
        "            raise ModuleNotFoundError('hidden', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    if there:
        for program in ("srun", "blaunch", "qsub", "java"):
            (tmp_path / program).touch(0o755)
        for module in modules:
            (tmp_path / module).mkdir()
            (tmp_path / module / "__init__.py").touch()
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": path, "PATH": str(tmp_path), "JAVA_HOME": None}
    job = run_launcher("--check-build", env=variables)
    assert job.returncode == 0, job.stderr
    lines = job.stdout.decode().splitlines()
    begin = lines.index("Available Engines:") + 1
    told = lines[begin : begin + 7]
    if there:
        programs = [f"    [X] {name}: {tmp_path}/{program}" for name, program in _PROGRAMS]
        assert told == [*programs, *(f"    [X] {name}" for name, _ in _PACKAGES)]
    else:
        programs = [f"    [ ] {name}: {program} is not on the PATH" for name, program in _PROGRAMS]
        packages = [
            f"    [ ] {name}: not installed; pip install 'horoscale[{extra}]'"
            for name, extra in _PACKAGES
        ]
        assert told == [*programs, *packages[:-1], f"{packages[-1]}, for elastic jobs"]


_PROGRAMS = (("Slurm", "srun"), ("LSF", "blaunch"), ("PBS", "qsub"))
_PACKAGES = (
    *(("Ray", "ray"), ("Spark", "spark")),
    *(("Dask", "dask"), ("Kubernetes", "kubernetes")),
)


def test_version() -> None:
    assert run_launcher("--version").stdout.decode().strip() == horoscale.__version__
