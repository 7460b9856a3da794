"""Trains a model whose training state is larger than memory and kept on disk (ZeRO stage 3).

    python examples/offload_training.py --width 2048 --layers 32 --folder /scratch
    horoscalerun -np 2 python examples/offload_training.py --width 4096 --folder /scratch

The model predicts the next character of Python's language reference, as shown by `help()`. It is
created on the device "meta", so no rank ever has all parameters in memory. Each rank keeps its part
of parameters, gradients and optimizer state in a file that disappears with the process. At the end
it prints the size of this state, and the peak memory of the rank:

    step  1: loss 5.0210
    ...
    state 1.95 GiB, memory 0.33 GiB beyond the 0.21 GiB before, 1.8 s a step
"""

from __future__ import annotations

import argparse
import resource
import time
from pydoc_data.topics import topics

import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

GIB = 2**30


class Block(nn.Module):
    """A norm and an MLP, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class NextCharacter(nn.Module):
    """Return the logits of the character after some characters."""

    def __init__(self, characters: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(characters, width // length)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, characters)

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.table(context).flatten(1)))


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument(
        "--length", type=int, default=16, help="length of the context in characters"
    )
    parser.add_argument("--batch", type=int, default=64, help="samples per step and rank")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--folder", help="folder on a disk; default: the one for temporary files")
    parser.add_argument(
        "--checkpoints", help="resume from the newest checkpoint in this folder, and save there"
    )
    parser.add_argument("--in-memory", action="store_true", help="disable offload")
    options = parser.parse_args()

    mesh = par.init()
    torch.manual_seed(1)
    text = "".join(topics.values())
    characters = sorted(set(text))
    number_of = {one: number for number, one in enumerate(characters)}
    numbers = torch.tensor([number_of[one] for one in text])

    before = peak_memory()
    with torch.device("meta"):
        model = NextCharacter(len(characters), options.length, options.width, options.layers)
    parameters = sum(one.numel() for one in model.parameters())
    par.shard(
        model,
        mesh.dp,
        stage=3,
        unit=Block,
        offload=None if options.in_memory else "disk",
        offload_folder=options.folder,
    )
    optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=options.lr)
    first = 0
    if options.checkpoints and par.latest_checkpoint(options.checkpoints):
        first = (par.load(options.checkpoints, model, optimizer, mesh) or {})["step"]
    begin = time.perf_counter()
    for step in range(first, first + options.steps):
        generator = torch.Generator().manual_seed(step * mesh.dp.size + mesh.dp.rank)
        at = torch.randint(len(numbers) - options.length, (options.batch,), generator=generator)
        windows = numbers[at[:, None] + torch.arange(options.length + 1)]
        loss = nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if hvd.rank() == 0 and (step % 10 == 0 or step == first + options.steps - 1):
            print(f"step {step + 1:2}: loss {float(loss.detach()):.4f}", flush=True)
    seconds = (time.perf_counter() - begin) / options.steps
    if options.checkpoints:
        extra = {"step": first + options.steps}
        par.save(options.checkpoints, model, optimizer, mesh, extra=extra, keep=1)
    if hvd.rank() == 0:
        state = 16 * parameters / mesh.dp.size  # values, gradients and two moments in float32
        print(
            f"state {state / GIB:.2f} GiB, memory {(peak_memory() - before) / GIB:.2f} GiB beyond "
            f"the {before / GIB:.2f} GiB before, {seconds:.1f} s a step"
        )


if __name__ == "__main__":
    main()
