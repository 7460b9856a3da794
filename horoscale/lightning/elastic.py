"""What Lightning's strategies allow in an elastic job."""

from __future__ import annotations

from horoscale.elastic.membership import membership
from horoscale.elastic.training import is_running


def check_elastic(strategy: str, *, can_continue: bool) -> None:
    """Raise RuntimeError in an elastic job where this strategy could not continue after a loss.

    `can_continue`: whether the strategy can do so in a function of hvd.elastic.run.
    """
    if not membership().elastic or (can_continue and is_running()):
        return
    job = "this job is elastic (--min-np, --max-np, --host-discovery-script)"
    if not can_continue:
        raise RuntimeError(
            f"{strategy} does not support elastic jobs, and {job}: launch it with -np only, or use "
            "hvd.elastic without it"
        )
    raise RuntimeError(
        f"{strategy} can continue from a checkpoint when the ranks change, and {job}: create the "
        'Trainer and call fit(ckpt_path="last") in a function of hvd.elastic.run, or launch with '
        "-np only"
    )
