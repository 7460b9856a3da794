"""Trains a GPT that predicts the next character, with layers, sequences and batches divided.

    horoscalerun -np 4 python examples/gpt_parallel.py --tp 2 --dp 2
    horoscalerun -np 2 python examples/gpt_parallel.py --tp 2 --sequence-parallel
    horoscalerun -np 4 python examples/gpt_parallel.py --tp 2 --pp 2
    horoscalerun -np 4 python examples/gpt_parallel.py --tp 2 --cp 2
    horoscalerun -np 4 python examples/gpt_parallel.py --tp 2 --zero 3
    horoscalerun -np 2 python examples/gpt_parallel.py --zero 3 --offload /scratch

The text is Python's language reference, as shown by `help()`. With --check each rank also trains
the whole model alone, in double precision, and compares the losses:

    step   1: loss 5.0210
    ...
    largest difference from one process: 1.2e-14
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pydoc_data.topics import topics

import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

TOLERANCE = 1e-9  # for losses in double precision


@dataclass(frozen=True)
class Text:
    """A text, encoded as the numbers of its characters."""

    characters: str
    numbers: torch.Tensor

    @classmethod
    def load(cls) -> Text:
        text = "\n".join(topics[name] for name in sorted(topics))
        characters = "".join(sorted(set(text)))
        place = {character: number for number, character in enumerate(characters)}
        return cls(characters, torch.tensor([place[character] for character in text]))

    def batch(self, step: int, samples: int, length: int) -> torch.Tensor:
        """Return the samples of a step, the same on all ranks: `length` + 1 characters each."""
        generator = torch.Generator().manual_seed(step)
        begins = torch.randint(len(self.numbers) - length, (samples,), generator=generator)
        return torch.stack([self.numbers[begin : begin + length + 1] for begin in begins.tolist()])


class Block(nn.Module):
    """Attention and an MLP, with normalized inputs and residuals."""

    def __init__(self, options: argparse.Namespace, axis: par.Axis, cp: par.Axis) -> None:
        super().__init__()
        sequence = {"sequence_parallel": options.sequence_parallel, "sequence_dim": 1}
        of_norm = axis if options.sequence_parallel else None
        self.before_attention = par.LayerNorm(options.dim, of_norm)
        over_all = partial(par.ring_attention, axis=cp, causal=True) if cp.size > 1 else None
        self.attention = par.ParallelAttention(
            options.dim, options.heads, axis, attend=over_all, **sequence
        )
        self.before_mlp = par.LayerNorm(options.dim, of_norm)
        self.mlp = par.ParallelMLP(options.dim, 4 * options.dim, axis, **sequence)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """Compute the mean loss of the next characters. The embedding and the head are tied."""

    def __init__(
        self, words: int, options: argparse.Namespace, axis: par.Axis, cp: par.Axis
    ) -> None:
        super().__init__()
        self.words = words
        self.axis, self.cp = axis, cp
        self.length = options.length
        self.positions = par.position_ids(options.length, cp)
        self.sequence_dim = 1 if options.sequence_parallel else None
        sequence = {"sequence_parallel": options.sequence_parallel, "sequence_dim": 1}
        self.embeddings = par.ParallelEmbeddings(
            options.dim, words, options.length, axis, **sequence
        )
        self.blocks = nn.Sequential(*(Block(options, axis, cp) for _ in range(options.layers)))
        self.norm = par.LayerNorm(options.dim, axis if options.sequence_parallel else None)
        # Small, so that initially all characters are equally likely.
        nn.init.normal_(self.embeddings.word_embeddings.weight, std=0.02)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        own, following = self.own_part(characters)
        hidden = self.norm(self.blocks(self.embeddings(own, self.positions)))
        logits = self.logits(hidden, self.embeddings.word_embeddings.weight)
        return self.loss(logits, following)

    def own_part(self, characters: torch.Tensor) -> list[torch.Tensor]:
        """Return inputs and targets of this rank's positions; those of the ranks of cp differ."""
        return [par.shard_sequence(x, self.cp) for x in (characters[:, :-1], characters[:, 1:])]

    def logits(self, hidden: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return par.column_parallel(hidden, table, None, self.axis, self.sequence_dim)

    def loss(self, logits: torch.Tensor, characters: torch.Tensor) -> torch.Tensor:
        loss = par.vocab_parallel_cross_entropy(
            logits, characters, self.axis, reduction="sum", vocab_size=self.words
        )
        # The average over cp, whose ranks may have unequal parts, is then that of all positions.
        return loss / (len(characters) * self.length) * self.cp.size


class Stage(nn.Module):
    """One of several equal parts of a GPT: the first one embeds, the last one returns logits."""

    def __init__(self, gpt: GPT, number: int, stages: int) -> None:
        super().__init__()
        blocks = list(gpt.blocks)
        first, end = (len(blocks) * one // stages for one in (number, number + 1))
        self.embeddings = gpt.embeddings if number == 0 else None
        self.positions = gpt.positions
        self.blocks = nn.Sequential(*blocks[first:end])
        self.norm: nn.Module = nn.Identity()
        self.table: nn.Parameter | None = None
        if number == stages - 1:
            self.norm = gpt.norm
            self.table = nn.Parameter(gpt.embeddings.word_embeddings.weight.detach().clone())
            self.logits = gpt.logits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embeddings is not None:
            x = self.embeddings(x, self.positions)
        hidden = self.norm(self.blocks(x))
        return hidden if self.table is None else self.logits(hidden, self.table)


class Pipelined:
    """Training in stages. Microbatches are equal parts of this rank's samples."""

    def __init__(self, gpt: GPT, options: argparse.Namespace, mesh: par.Mesh) -> None:
        self.mesh = mesh
        self.own_part = gpt.own_part
        stages = [
            (lambda number=number: Stage(gpt, number, mesh.pp.size))
            for number in range(mesh.pp.size)
        ]
        self.pipe = par.Pipeline(
            stages,
            mesh.pp,
            loss=gpt.loss,
            schedule=options.schedule,
            microbatches=options.microbatches,
            tied=[[(0, "embeddings.word_embeddings.weight"), (-1, "table")]],
        )
        inner = torch.optim.AdamW(self.pipe.parameters(), lr=options.lr, eps=1e-5)
        self.optimizer = par.DistributedOptimizer(
            inner, self.pipe.module, mesh, backward_passes_per_step=options.microbatches
        )

    def train(self, batch: torch.Tensor) -> float:
        """Do a step with this rank's samples of a batch; return the mean loss of all of them."""
        self.optimizer.zero_grad()
        own = batch.chunk(self.mesh.dp.size)[self.mesh.dp.rank]
        loss = self.pipe.step(*self.own_part(own), sync_tied=False)
        self.optimizer.synchronize()
        self.pipe.sync_tied()
        exclude = self.pipe.tied_copies
        par.clip_grad_norm_(self.pipe.module, 1.0, self.mesh, exclude=exclude)
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        return mean_over_data(loss, self.mesh)


def mean_over_data(loss: torch.Tensor, mesh: par.Mesh) -> float:
    others = mesh["dp", "cp"].set
    return float(loss if others is None else hvd.allreduce(loss, process_set=others))


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, mesh: par.Mesh, batch: torch.Tensor
) -> float:
    """Do a step with this rank's samples of a batch; return the mean loss of all of them."""
    optimizer.zero_grad()
    loss = model(batch.chunk(mesh.dp.size)[mesh.dp.rank])
    loss.backward()
    optimizer.synchronize()
    par.clip_grad_norm_(model, 1.0, mesh)
    with optimizer.skip_synchronize():
        optimizer.step()
    return mean_over_data(loss.detach(), mesh)


def trainer(
    model: GPT, options: argparse.Namespace, mesh: par.Mesh
) -> Callable[[torch.Tensor], float]:
    """Return a function that runs a step with a batch."""
    if mesh.pp.size > 1:
        return Pipelined(model, options, mesh).train
    if options.zero:
        par.shard(
            model,
            mesh["dp", "cp"],
            options.zero,
            unit=Block,
            offload="disk" if options.offload else None,
            offload_folder=options.offload,
        )
        zero = par.ZeroOptimizer(torch.optim.AdamW, model, lr=options.lr, eps=1e-5)
        return lambda batch: train(model, zero, mesh, batch)
    optimizer = par.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=options.lr, eps=1e-5), model, mesh
    )
    return lambda batch: train(model, optimizer, mesh, batch)


class OneProcess:
    """The same training without other ranks."""

    def __init__(self, model: nn.Module, words: int, options: argparse.Namespace) -> None:
        """Start with the weights of a divided model."""
        self.model = GPT(words, options, par.Axis.of(None), par.Axis.of(None))
        par.load_whole_state_dict(self.model, par.whole_state_dict(model))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr, eps=1e-5)

    def train(self, batch: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = self.model(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tp", type=int, default=1, help="ranks that share each layer")
    parser.add_argument("--cp", type=int, default=1, help="ranks that share each sequence")
    parser.add_argument("--pp", type=int, default=1, help="ranks among which layers are divided")
    parser.add_argument(
        "--schedule", default="1f1b", help="schedule for --pp: gpipe, 1f1b or zb-h1"
    )
    parser.add_argument(
        "--microbatches", type=int, default=4, help="microbatches per step, for --pp"
    )
    parser.add_argument("--dp", type=int, help="ranks that share each batch; default: the rest")
    parser.add_argument(
        "--zero", type=int, default=0, metavar="STAGE", help="divide the training state over dp, cp"
    )
    parser.add_argument(
        "--offload", metavar="FOLDER", help="folder on a disk for the state of --zero"
    )
    parser.add_argument("--sequence-parallel", action="store_true", help="also divide norms")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=64, help="characters per sample")
    parser.add_argument("--batch", type=int, default=16, help="samples per step, on all ranks")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--check", action="store_true", help="compare with one process")
    options = parser.parse_args()
    if options.zero and options.pp > 1:
        parser.error("--zero can't divide the table, which stages of --pp tie")
    if options.offload and not options.zero:
        parser.error("--offload is of the training state that --zero divides")
    if options.check:
        torch.set_default_dtype(torch.float64)

    mesh = par.init(tp=options.tp, cp=options.cp, pp=options.pp, dp=options.dp)
    if options.batch % mesh.dp.size:
        parser.error(f"--batch {options.batch} can't be divided among {mesh.dp.size} ranks")
    text = Text.load()
    words = len(text.characters)
    torch.manual_seed(1)
    model = GPT(words, options, mesh.tp, mesh.cp)
    one_process = OneProcess(model, words, options) if options.check else None
    step_with = trainer(model, options, mesh)
    difference = 0.0
    for step in range(options.steps):
        batch = text.batch(step, options.batch, options.length)
        loss = step_with(batch)
        if one_process is not None:
            difference = max(difference, abs(loss - one_process.train(batch)))
        if hvd.rank() == 0 and (step % 10 == 0 or step == options.steps - 1):
            print(f"step {step + 1:3}: loss {loss:.4f}", flush=True)
    if options.check:
        if hvd.rank() == 0:
            print(f"largest difference from one process: {difference:.1e}", flush=True)
        if not difference < TOLERANCE:
            raise SystemExit(f"rank {hvd.rank()}: the losses differ by {difference}")


if __name__ == "__main__":
    main()
