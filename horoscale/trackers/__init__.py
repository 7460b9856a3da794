"""Logs training to TensorBoard and Weights & Biases: on one rank, with the runtime's numbers.

    from horoscale import trackers

    hvd.init()
    with trackers.TensorBoard("runs/1") as tracker:
        for step, batch in enumerate(batches):
            loss = train(batch)
            tracker.log({"loss": loss}, step)

Every rank makes the same calls. Only rank 0, or the first rank of a process set, imports the
package of the service and writes. See docs/how_to/track_training.md.

Structure: runtime_scalars.py selects numbers of hvd.metrics() and names them. tracker.py decides
which rank writes, and when. tensorboard.py and wandb.py write.
"""

from horoscale.trackers.runtime_scalars import RuntimeScalars
from horoscale.trackers.tensorboard import TensorBoard
from horoscale.trackers.tracker import Sink, Tracker
from horoscale.trackers.wandb import WandB

__all__ = ["RuntimeScalars", "Sink", "TensorBoard", "Tracker", "WandB"]
