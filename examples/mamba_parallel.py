"""Trains a small state-space model (Mamba-2 blocks) that is divided among ranks.

    horoscalerun -np 4 python examples/mamba_parallel.py --tp 2 --cp 2 --compare

--tp divides the heads of each block, and the sequence outside blocks (sequence parallelism). --cp
divides the sequence, and passes the scan's state from rank to rank. The remaining factor of the
number of ranks is data parallelism. With --compare rank 0 then trains the model alone:

    tp=2 cp=2 dp=1: loss 5.5683 to 3.2206, largest difference from one process 6.2e-15

The blocks are those of Dao and Gu: Transformers are SSMs (2024), in plain PyTorch, without kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import horoscale.torch as hvd
import horoscale.torch.parallel as par

WIDTH, INNER, HEAD, GROUPS, STATE, TAPS, LAYERS, SYMBOLS = 32, 64, 8, 4, 8, 4, 2, 256
HEADS = INNER // HEAD
CHUNK = 16  # positions of the scan that matrix products compute together
HALO, SCAN = 1, 2  # tags

# The parts that a block first computes from its input, with their size for one group of heads: the
# gate, the values, their input and output matrices of the state (B and C), and the step size.
PARTS = {"z": INNER, "x": INNER, "B": GROUPS * STATE, "C": GROUPS * STATE, "dt": HEADS}
CONVOLVED = ("x", "B", "C")


def main() -> None:
    """Train on all ranks, then optionally on one, and compare."""
    parser = argparse.ArgumentParser(description="Train a small Mamba-2 on several ranks.")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share the heads")
    parser.add_argument("--cp", type=int, default=1, help="ranks that share the sequence")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=4, help="sequences per step, over all ranks")
    parser.add_argument("--length", type=int, default=96, help="of a sequence")
    parser.add_argument("--compare", action="store_true", help="also train in one process")
    options = parser.parse_args()

    torch.set_num_threads(1)  # the ranks share the cores
    mesh = par.init(tp=options.tp, cp=options.cp)
    if options.length < TAPS * options.cp:
        raise SystemExit(f"--length {options.length} is too short for --cp {options.cp}")
    if options.batch % mesh.dp.size:
        raise SystemExit(f"--batch {options.batch} is no multiple of dp={mesh.dp.size}")
    losses = train(options, mesh["tp"], mesh["cp"], mesh["dp"])
    if hvd.rank() == 0:
        sizes = " ".join(f"{axis.name}={axis.size}" for axis in (mesh.tp, mesh.cp, mesh.dp))
        print(f"{sizes}: loss {losses[0]:.4f} to {losses[-1]:.4f}", end="", flush=True)
        if options.compare:
            alone = train(options, *(par.Axis(name, (0,), 0) for name in ("tp", "cp", "dp")))
            difference = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
            print(f", largest difference from one process {difference:.1e}", end="")
        print()
    hvd.shutdown()


def train(options: argparse.Namespace, tp: par.Axis, cp: par.Axis, dp: par.Axis) -> list[float]:
    """Return the loss of each step, over the tokens of all ranks."""
    model = Model(tp, cp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for inputs, targets in batches(options.steps, options.batch, options.length):
        own = slice(dp.rank, None, dp.size)
        # The sequence is divided over cp, and the part of a rank of cp is divided over tp.
        inputs, targets = (
            par.shard_sequence(par.shard_sequence(x[own], cp, 1, "contiguous"), tp, 1, "contiguous")
            for x in (inputs, targets)
        )
        logits = model(inputs)
        loss = functional.cross_entropy(logits.mT, targets, reduction="sum")
        loss = loss / (options.batch * options.length)
        optimizer.zero_grad()
        loss.backward()
        # Every rank has the gradients of its own tokens. Parameters that are divided over tp have
        # already seen the tokens of all its ranks.
        divided = list(model.divided())
        chosen = {id(parameter) for parameter in divided}
        whole = [one for one in model.parameters() if id(one) not in chosen]
        for axis in (cp, dp):
            add_up([one.grad for one in divided], axis)
        for axis in (tp, cp, dp):
            add_up([one.grad for one in whole], axis)
            add_up([loss.detach()], axis)
        optimizer.step()
        losses.append(loss.item())
    return losses


def add_up(tensors: list[torch.Tensor], axis: par.Axis) -> None:
    """Replace tensors by their sums over the ranks of an axis."""
    if axis.set is not None:
        hvd.grouped_allreduce_(tensors, op=hvd.Sum, process_set=axis.set)


def batches(steps: int, batch: int, length: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield symbols and their successors, from a text that is part of every Python."""
    text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(text) - length, (batch, 1), generator=generator)
        positions = starts + torch.arange(length)
        yield text[positions], text[positions + 1]


class Model(nn.Module):
    """Predicts the next symbol of a text."""

    def __init__(self, tp: par.Axis, cp: par.Axis) -> None:
        """Draw the same weights on any number of ranks; each rank keeps its part."""
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        self.embedding = parameter(SYMBOLS, WIDTH, draw=draw)
        self.norms = nn.ParameterList(parameter(WIDTH, draw=draw) for _ in range(LAYERS + 1))
        self.blocks = nn.ModuleList(Mamba2(tp, cp, draw) for _ in range(LAYERS))

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        """Return the logits of the successors of this rank's symbols."""
        x = functional.embedding(symbols, self.embedding)
        for norm, block in zip(self.norms, self.blocks, strict=False):
            x = x + block(functional.rms_norm(x, (WIDTH,), 1 + norm))
        return functional.rms_norm(x, (WIDTH,), 1 + self.norms[-1]) @ self.embedding.T

    def divided(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that are divided over tp."""
        return self.blocks.parameters()


def parameter(*shape: int, draw: torch.Generator) -> nn.Parameter:
    return nn.Parameter(0.1 * torch.randn(shape, generator=draw, dtype=torch.float64))


class Mamba2(nn.Module):
    """A Mamba-2 block whose groups of heads are divided over tp."""

    def __init__(self, tp: par.Axis, cp: par.Axis, draw: torch.Generator) -> None:
        """Draw whole weights, and keep those of this rank's groups."""
        super().__init__()
        self.tp, self.cp = tp, cp
        self.input = nn.Parameter(
            torch.cat([self._own(parameter(rows, WIDTH, draw=draw)) for rows in PARTS.values()])
        )
        self.taps = nn.Parameter(
            torch.cat([self._own(parameter(PARTS[one], TAPS, draw=draw)) for one in CONVOLVED])
        )
        self.rate, self.skip, self.step = (
            nn.Parameter(self._own(parameter(HEADS, draw=draw))) for _ in range(3)
        )
        self.norm = nn.Parameter(self._own(parameter(INNER, draw=draw)))
        self.output = nn.Parameter(self._own(parameter(INNER, WIDTH, draw=draw)).T.contiguous())

    def _sizes(self, rows: int) -> tuple[int, ...]:
        return par.split_sizes(rows, self.tp.size, rows // GROUPS)

    @torch.no_grad()
    def _own(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.split(self._sizes(len(whole)))[self.tp.rank].clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor as x, (batch, positions, WIDTH), of this rank's positions."""
        own = {name: self._sizes(rows)[self.tp.rank] for name, rows in PARTS.items()}
        # From here on: all positions of this rank of cp, and the heads of this rank.
        z, x, dt = par.column_parallel(x, self.input, None, self.tp, 1).split(
            [own["z"], sum(own[name] for name in CONVOLVED), own["dt"]], -1
        )
        x = functional.silu(convolve(x, self.taps, self.cp))
        x, b, c = x.split([own[name] for name in CONVOLVED], -1)
        x, b, c = (y.unflatten(-1, (-1, size)) for y, size in ((x, HEAD), (b, STATE), (c, STATE)))
        b, c = (y.repeat_interleave(HEADS // GROUPS, 2) for y in (b, c))
        dt = functional.softplus(dt + self.step)
        y = scan(x * dt[..., None], -dt * self.rate.exp(), b, c, self.cp)
        y = (y + x * self.skip[:, None]).flatten(2) * functional.silu(z)
        group = (
            INNER // GROUPS
        )  # each is normalized separately, so it does not matter which rank has it
        y = functional.rms_norm(y.unflatten(-1, (-1, group)), (group,)).flatten(2) * (1 + self.norm)
        return par.row_parallel(y, self.output, None, self.tp, 1)


def convolve(x: torch.Tensor, taps: torch.Tensor, cp: par.Axis) -> torch.Tensor:
    """Return for each position the weighted sum of the last TAPS positions, by channel."""
    before = TAPS - 1
    sent = send_on(x[:, -before:].contiguous(), cp, HALO)
    x = torch.cat([take(x[:, :before], cp, HALO), x], 1)
    return sum(x[:, i : x.shape[1] - before + i] * taps[:, i] for i in range(TAPS)) + sent


def scan(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, cp: par.Axis
) -> torch.Tensor:
    """Return y of h[t] = exp(a[t]) h[t-1] + b[t] x[t], y[t] = c[t] h[t], over all ranks of cp.

    This rank's positions are computed as if the sequence started there, so that only a small
    product waits for the state of the previous rank.

    x is (batch, positions, heads, HEAD), a (batch, positions, heads), b and c (batch, positions,
    heads, STATE).
    """
    y, state = scan_of_chunks(x, a, b, c)
    decay = a.cumsum(1).exp()
    initial = take(state, cp, SCAN)
    y = y + torch.einsum("bln,blns,bnsp->blnp", decay, c, initial)
    return y + send_on(state + decay[:, -1, :, None, None] * initial, cp, SCAN)


def scan_of_chunks(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run scan() from a zero state; return y and the last state, (batch, heads, STATE, HEAD)."""
    length = x.shape[1]
    # Padding leaves the state unchanged.
    missing = -length % CHUNK
    x, b, c = (functional.pad(one, (0, 0, 0, 0, 0, missing)) for one in (x, b, c))
    x, a, b, c = (
        one.unflatten(1, (-1, CHUNK)) for one in (x, functional.pad(a, (0, 0, 0, missing)), b, c)
    )
    since = a.cumsum(2)  # (batch, chunks, CHUNK, heads)
    between = since[:, :, :, None] - since[:, :, None]  # from the second position to the first
    seen = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()[..., None]
    decay = between.masked_fill(~seen, -torch.inf).exp()
    y = torch.einsum("bzins,bzjns,bzijn,bzjnp->bzinp", c, b, decay, x)
    to_end = (since[:, :, -1:] - since).exp()
    added = torch.einsum("bzjns,bzjn,bzjnp->bznsp", b, to_end, x)
    state, before = torch.zeros_like(added[:, 0]), []
    for chunk in range(added.shape[1]):
        before.append(state)
        state = since[:, chunk, -1].exp()[..., None, None] * state + added[:, chunk]
    y = y + torch.einsum("bzins,bzin,bznsp->bzinp", c, since.exp(), torch.stack(before, 1))
    return y.flatten(1, 2)[:, :length], state


def send_on(x: torch.Tensor, axis: par.Axis, tag: int) -> torch.Tensor:
    """Send a tensor to the next rank, if any; return a zero that carries its gradient."""
    if axis.rank == axis.size - 1:
        return x.new_zeros(())
    return hvd.send(x, axis.next, tag, axis.set)


def take(like: torch.Tensor, axis: par.Axis, tag: int) -> torch.Tensor:
    """Receive a tensor from the previous rank; zeros on the first rank."""
    if axis.rank == 0:
        return torch.zeros_like(like)
    room = torch.empty_like(like, memory_format=torch.contiguous_format)
    return hvd.recv(room.requires_grad_(), axis.prev, tag, axis.set)


if __name__ == "__main__":
    main()
