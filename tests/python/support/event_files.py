"""Reads TensorBoard's event files, as TensorBoard does."""

from __future__ import annotations

from pathlib import Path


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The steps and values of each scalar in a folder's event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(one.step, one.value) for one in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
