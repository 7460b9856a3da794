"""The SparkContext of this process, and how many tasks it can run at the same time."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

_POLL_S = 0.2
_TELL_S = 5.0  # delay of the message that it waits


class SparkError(RuntimeError):
    """Spark is not available, or can't run such a job. The message is for the user."""


def active_context() -> SparkContext:
    """Return the SparkContext of this process. Raises SparkError if there is none."""
    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise SparkError(
            f"horoscale.spark needs pyspark, which is not there ({error}): "
            "pip install 'horoscale[spark]'"
        ) from error
    context = SparkContext._active_spark_context
    if context is not None:
        return context
    java = shutil.which("java", path=os.path.join(os.environ.get("JAVA_HOME", ""), "bin"))
    if java is None and shutil.which("java") is None:
        raise SparkError(
            "Spark needs Java, and there is none on the PATH or in JAVA_HOME: install a JRE, 17 or "
            "newer, such as Debian's openjdk-17-jre-headless"
        )
    raise SparkError(
        "there is no SparkContext: create a session first, such as by "
        "SparkSession.builder.getOrCreate() (Spark Connect's sessions have none)"
    )


def allocates_dynamically(context: SparkContext) -> bool:
    """Return whether Spark starts and ends executors on demand (dynamic allocation)."""
    if context.master == "local" or context.master.startswith("local["):
        return False  # Spark ignores the setting there
    return _settings(context)("spark.dynamicAllocation.enabled", "false").lower() == "true"


def check_barrier(context: SparkContext, wanted: int) -> None:
    """Raise SparkError if this application can never run a barrier stage of `wanted` tasks."""
    check_slots(context, wanted)
    if allocates_dynamically(context):
        raise SparkError(
            "Spark runs no barrier stages with dynamic allocation: set "
            "spark.dynamicAllocation.enabled=false, or use horoscale.spark.run_elastic()"
        )


def check_slots(context: SparkContext, wanted: int) -> None:
    """Raise SparkError if this application can never run `wanted` tasks at the same time."""
    most = _most_slots(context)
    if most is not None and most < wanted:
        raise SparkError(
            f"{wanted} ranks need {wanted} slots, and this application has at most {most} "
            f"({_describe(context)}): start fewer ranks (num_proc), or Spark with more"
        )


def wait_for_slots(context: SparkContext, wanted: int, seconds: float) -> None:
    """Wait until Spark can run `wanted` tasks at the same time.

    Barrier tasks start together or not at all. Spark reports a lack of slots only after many
    attempts (SPARK-24819), or waits forever. With dynamic allocation, executors start when tasks
    wait for them, so this function does not wait.

    Raises:
        SparkError: immediately if there can never be so many slots; otherwise after `seconds`.
    """
    check_slots(context, wanted)
    if allocates_dynamically(context):
        return
    began = time.monotonic()
    told = False
    while (there := _slots(context)) < wanted:
        waited = time.monotonic() - began
        if not told and waited > _TELL_S:
            told = True
            sys.stderr.write(
                f"horoscale.spark: waiting for {wanted} slots for up to {seconds:g} s; there are "
                f"{there} ({_describe(context)})\n"
            )
        if waited > seconds:
            raise SparkError(
                f"{wanted} ranks need {wanted} slots, and after {seconds:g} s there are {there} "
                f"({_describe(context)}): start fewer ranks (num_proc), give Spark more executors, "
                "or wait longer for them (start_timeout)"
            )
        time.sleep(_POLL_S)


def _slots(context: SparkContext) -> int:
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    return int(scala.maxNumConcurrentTasks(profile))


def _most_slots(context: SparkContext) -> int | None:
    """Return the number of slots when all executors have started; None if unknown."""
    setting = _settings(context)
    cpus = int(setting("spark.task.cpus", "1"))
    local_cluster = re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,", context.master)
    if local_cluster:
        return int(local_cluster[1]) * (int(local_cluster[2]) // cpus)
    if context.master.startswith("local"):
        return _slots(context)
    instances, cores = setting("spark.executor.instances", ""), setting("spark.executor.cores", "")
    if context.master.startswith(("yarn", "k8s:")):
        instances, cores = instances or "2", cores or "1"  # Spark's defaults there
    if allocates_dynamically(context):
        instances = setting("spark.dynamicAllocation.maxExecutors", "")
    if instances and cores:
        return int(instances) * (int(cores) // cpus)
    total = setting("spark.cores.max", "")
    return int(total) // cpus if total else None


def _describe(context: SparkContext) -> str:
    cpus = _settings(context)("spark.task.cpus", "1")
    return f"master {context.master}, {cpus} core{'s' if cpus != '1' else ''} a task"


def _settings(context: SparkContext) -> Callable[[str, str], str]:
    configuration = context.getConf()
    return lambda name, default: str(configuration.get(name, default))
