"""The settings of the core that have a flag and a key in the configuration file.

A table lists for each a flag of horoscalerun, a section and key of --config-file, and the
HOROSCALE_ variable that passes it to the ranks.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

Parser = Callable[[str], str]  # validates the text and returns the variable's value


class SettingsError(ValueError):
    """An invalid setting. The message is for the user."""


def _number(low: float, *, whole: bool, scale: int = 1) -> Parser:
    def parse(text: str) -> str:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = float("nan")
        if not low <= value < float("inf"):
            kind = "a whole number" if whole else "a number"
            raise SettingsError(f"expected {kind} of at least {low:g}, not {text!r}")
        scaled = value * scale
        return str(int(scaled)) if scaled == int(scaled) else str(scaled)

    return parse


def _choice(*names: str) -> Parser:
    def parse(text: str) -> str:
        if text.lower() not in names:
            raise SettingsError(f"expected one of {', '.join(names)}, not {text!r}")
        return text.lower()

    return parse


def _text(text: str) -> str:
    if not text:
        raise SettingsError("expected a value, not an empty one")
    return text


def _path(text: str) -> str:
    """Return an absolute path, because a rank may change its directory."""
    return os.path.abspath(os.path.expanduser(_text(text)))


def _interval(text: str) -> str:
    from horoscale.elastic.checkpointing import parse_interval  # imports numpy

    try:
        parse_interval(text)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return text.strip()


def _megabytes(text: str) -> str:
    return str(int(float(_number(0, whole=False, scale=1 << 20)(text))))


_COUNT = _number(0, whole=True)
_SECONDS = _number(0, whole=False)
_LEVELS = _choice("trace", "debug", "info", "warning", "error", "fatal", "off")


@dataclass(frozen=True)
class Setting:
    """One row of the table. A switch has no parser: it is on, off, or not given."""

    flags: tuple[str, ...]
    variable: str
    help: str
    parse: Parser | None = None
    config: tuple[str, str] | None = None  # section and key
    metavar: str | None = None
    on: str = "1"  # the variable's values for a switch
    off: str | None = "0"  # None: the variable isn't set
    missing: str | None = None  # the missing feature without which this has no effect

    @property
    def name(self) -> str:
        """The attribute of the parsed arguments."""
        return self.flags[0].lstrip("-").replace("-", "_")


SETTINGS = (
    Setting(
        ("--fusion-threshold-mb",),
        "FUSION_THRESHOLD",
        "the largest fused operation, in MiB",
        _megabytes,
        ("params", "fusion_threshold_mb"),
        "MB",
    ),
    Setting(
        ("--cycle-time-ms",),
        "CYCLE_TIME",
        "accepted for compatibility with Horovod; no effect: the core is event-driven",
        _number(0, whole=False),
        ("params", "cycle_time_ms"),
        "MS",
    ),
    Setting(
        ("--cache-capacity",),
        "CACHE_CAPACITY",
        "the capacity of the response cache, in tensors",
        _COUNT,
        ("params", "cache_capacity"),
        "N",
    ),
    Setting(
        ("--disable-cache",),
        "CACHE_CAPACITY",
        "negotiate every tensor each time, without the response cache",
        config=("params", "disable_cache"),
        on="0",
        off=None,
    ),
    Setting(
        ("--hierarchical-allreduce",),
        "HIERARCHICAL_ALLREDUCE",
        "accepted, no effect: reductions always run within hosts first",
        config=("params", "hierarchical_allreduce"),
    ),
    Setting(
        ("--hierarchical-allgather",),
        "HIERARCHICAL_ALLGATHER",
        "accepted, no effect: rows always cross between two hosts once",
        config=("params", "hierarchical_allgather"),
    ),
    Setting(
        ("--autotune",),
        "AUTOTUNE",
        "tune fusion, partitions, credit and pace while the job runs, from predictions",
        config=("autotune", "enabled"),
    ),
    Setting(
        ("--autotune-log-file",),
        "AUTOTUNE_LOG",
        "the CSV file for a log of autotuning, the pace and adaptive compression",
        _text,
        ("autotune", "log_file"),
        "FILE",
    ),
    Setting(
        ("--timeline-filename",),
        "TIMELINE",
        "write a timeline (Chrome trace JSON) of the job",
        _text,
        ("timeline", "filename"),
        "FILE",
    ),
    Setting(
        ("--timeline-mark-cycles",),
        "TIMELINE_MARK_CYCLES",
        "mark executed plan entries in the timeline",
        config=("timeline", "mark_cycles"),
    ),
    Setting(
        ("--stall-check",),
        "STALL_CHECK_DISABLE",
        "report tensors that some ranks do not submit (default: on)",
        config=("stall_check", "enabled"),
        on="0",
        off="1",
    ),
    Setting(
        ("--stall-check-warning-time-seconds",),
        "STALL_CHECK_TIME_SECONDS",
        "seconds after which a stall is reported",
        _SECONDS,
        ("stall_check", "warning_time_seconds"),
        "S",
    ),
    Setting(
        ("--stall-check-shutdown-time-seconds",),
        "STALL_SHUTDOWN_TIME_SECONDS",
        "seconds after which a stall ends the job; 0: never",
        _SECONDS,
        ("stall_check", "shutdown_time_seconds"),
        "S",
    ),
    Setting(
        ("--log-level",),
        "LOG_LEVEL",
        "trace, debug, info, warning, error, fatal or off",
        _LEVELS,
        ("logging", "level"),
        "LEVEL",
    ),
    Setting(
        ("--log-hide-timestamp",),
        "LOG_HIDE_TIME",
        "log without the time (also --log-without-timestamp, --log-with-timestamp)",
        config=("logging", "hide_timestamp"),
    ),
    Setting(
        ("--num-nccl-streams",),
        "NUM_NCCL_STREAMS",
        "the number of streams for NCCL",
        _number(1, whole=True),
        ("library_options", "num_nccl_streams"),
        "N",
        missing="several streams for NCCL (each process set has one)",
    ),
    Setting(
        ("--thread-affinity",),
        "THREAD_AFFINITY",
        "the core of each local rank's progress thread: 0,1,…",
        _text,
        ("library_options", "thread_affinity"),
        "CORES",
        missing="pinning of the progress thread",
    ),
    Setting(
        ("--gradients-ready",),
        "GRADIENTS_READY",
        "when DistributedOptimizer has averaged gradients: in step, or when backward returns",
        _choice("step", "backward"),
        ("params", "gradients_ready"),
        "step|backward",
    ),
    Setting(
        ("--network-interface", "--network-interfaces"),
        "NETWORK_INTERFACE",
        "network interfaces to use, separated by commas",
        _text,
        ("params", "network_interface"),
        "NAMES",
    ),
    Setting(
        ("--encrypt",),
        "ENCRYPT",
        "encrypt all traffic between hosts (TLS 1.3; needs OpenSSL on all hosts)",
        config=("params", "encrypt"),
    ),
    Setting(
        ("--start-timeout",),
        "START_TIMEOUT",
        "seconds that the ranks may take to connect to each other",
        _number(1, whole=False),
        ("params", "start_timeout"),
        "S",
    ),
    Setting(
        ("--checkpoint-dir",),
        "CHECKPOINT_DIR",
        "the folder for checkpoints of hvd.elastic's commits",
        _path,
        ("checkpoints", "dir"),
        "DIR",
    ),
    Setting(
        ("--checkpoint-every",),
        "CHECKPOINT_EVERY",
        "the interval of checkpoints: a time such as 60s (default) or 5m, or a number of commits",
        _interval,
        ("checkpoints", "every"),
        "60s|N",
    ),
    Setting(
        ("--resume",),
        "RESUME",
        "resume from the newest checkpoint in this folder, with any number of ranks",
        _path,
        ("checkpoints", "resume"),
        "DIR",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the table. Flags that are not given are None."""
    group = parser.add_argument_group("settings of the ranks")
    for setting in SETTINGS:
        if setting.parse is None:
            group.add_argument(
                *setting.flags, action=argparse.BooleanOptionalAction, help=setting.help
            )
        else:
            group.add_argument(*setting.flags, metavar=setting.metavar, help=setting.help)
    hide = next(setting for setting in SETTINGS if setting.variable == "LOG_HIDE_TIME")
    for flag, action in (
        ("--log-without-timestamp", "store_true"),
        ("--log-with-timestamp", "store_false"),
    ):
        group.add_argument(
            flag, dest=hide.name, action=action, default=None, help=argparse.SUPPRESS
        )


def variables(arguments: argparse.Namespace, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables to set, without prefix. The command line overrides the file."""
    values: dict[str, str] = {}
    for setting in SETTINGS:
        given = getattr(arguments, setting.name)
        source = setting.flags[0]
        if given is None and setting.config is not None:
            section, key = setting.config
            given = (config.get(section) or {}).get(key)
            source = f"{section}.{key}"
        if given is None:
            continue
        if setting.missing is not None and given is not False:
            raise SettingsError(
                f"{source} needs a feature that is not available yet: {setting.missing}"
            )
        value = _variable_value(setting, source, given)
        if value is not None:
            values[setting.variable] = value
    return values


def read_config(path: str) -> dict[str, Any]:
    """Read a configuration file: YAML, a mapping of sections to mappings of keys."""
    try:
        with open(path, encoding="utf-8") as file:
            config = yaml.safe_load(file) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"can't read the configuration file {path}: {error}") from None
    known: dict[str, list[str]] = {}
    for setting in SETTINGS:
        if setting.config is not None:
            known.setdefault(setting.config[0], []).append(setting.config[1])
    if not isinstance(config, dict):
        raise SettingsError(f"{path}: expected sections ({', '.join(known)})")
    for section, keys in config.items():
        if section not in known:
            raise SettingsError(
                f"{path}: unknown section {section!r}; the sections are {', '.join(known)}"
            )
        if not isinstance(keys, dict | None):
            raise SettingsError(f"{path}: section {section!r} is not a mapping of keys to values")
        for key in keys or {}:
            if key not in known[section]:
                listing = ", ".join(known[section])
                raise SettingsError(f"{path}: unknown key {section}.{key}; the keys are {listing}")
    return config


def _variable_value(setting: Setting, source: str, given: Any) -> str | None:
    if setting.parse is None:
        if not isinstance(given, bool):
            raise SettingsError(f"{source}: expected true or false, not {given!r}")
        return setting.on if given else setting.off
    if given is False and setting.parse is _LEVELS:
        given = "off"  # YAML parses an unquoted off as false
    if isinstance(given, bool | list | dict):
        raise SettingsError(f"{source}: can't be {given!r}")
    try:
        return setting.parse(str(given))
    except SettingsError as error:
        raise SettingsError(f"{source}: {error}") from None
