"""A rank whose tensor, name and object an attacker on the path may search for and modify.

It prints how far it got, and why it ended.
"""

from __future__ import annotations

import numpy as np

import horoscale.numpy as hvd

TENSOR = b"the values of a tensor, as bytes"
NAME = "the name of a tensor, in a report"
OBJECT = "what an object that is pickled has in it"


class Told:
    """Prints a line when it is unpickled."""

    def __init__(self, rank: int, text: str) -> None:
        self.rank = rank
        self.text = text

    def __setstate__(self, state: dict[str, object]) -> None:
        """Called by pickle."""
        self.__dict__.update(state)
        print(f"rank {hvd.rank()} has unpickled rank {self.rank}", flush=True)


def main() -> None:
    """Run one operation of each kind that an attacker could tamper with."""
    try:
        hvd.init()  # a rank may still be in here when the other rank's next message is modified
        mine = np.frombuffer(TENSOR * 8, np.uint8) * np.uint8(hvd.rank() == 0)
        total = hvd.allreduce(mine, op=hvd.Sum, name=NAME)
        assert total.tobytes() == TENSOR * 8
        print("reduced", flush=True)
        texts = [told.text for told in hvd.allgather_object(Told(hvd.rank(), OBJECT))]
        assert texts == [OBJECT, OBJECT]
        hvd.barrier()
        print("all well", flush=True)
    except hvd.HorovodInternalError as error:
        print(f"failed: {error}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
