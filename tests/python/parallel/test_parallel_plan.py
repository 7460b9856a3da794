"""Models of other libraries' shapes, divided by a plan, train as one process does."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.parallel import MARKS, adamw, mesh, train
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

pytestmark = MARKS


class Conv1D(nn.Module):
    """transformers' linear layer, whose weight is (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.nx = nx
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.2)
        self.bias = nn.Parameter(torch.randn(nf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], self.nf)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head_dim: int
) -> torch.Tensor:
    heads = [one.unflatten(-1, (-1, head_dim)).transpose(1, 2) for one in (query, key, value)]
    groups = heads[0].shape[1] // heads[1].shape[1]
    heads[1:] = [one.repeat_interleave(groups, 1) for one in heads[1:]]
    return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)


class GPT2Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.split_size = heads, dim // heads, dim
        self.c_attn = Conv1D(3 * dim, dim)
        self.c_proj = Conv1D(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.c_attn(x).split(self.split_size, dim=2)
        assert parts[0].shape[-1] == self.num_heads * self.head_dim
        return self.c_proj(attend(*parts, self.head_dim))


class GPT2MLP(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.c_fc = Conv1D(4 * dim, dim)
        self.c_proj = Conv1D(dim, 4 * dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(F.gelu(self.c_fc(x)))


class LlamaAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim // 2, bias=False)
        self.v_proj = nn.Linear(dim, dim // 2, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o_proj(attend(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.head_dim))


class LlamaMLP(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.up_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.down_proj = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, dim: int, **halves: nn.Module) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.names = list(halves)
        for name, half in halves.items():
            self.add_module(name, half)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + getattr(self, self.names[0])(self.first(x))
        return x + getattr(self, self.names[1])(self.second(x))


class Model(nn.Module):
    def __init__(self, kind: str, words: int = 23, dim: int = 48, heads: int = 24) -> None:
        super().__init__()
        if kind == "gpt2":
            self.wte = table = nn.Embedding(words, dim)
            layers = [Layer(dim, attn=GPT2Attention(dim, heads), mlp=GPT2MLP(dim)) for _ in "12"]
        else:
            self.embed_tokens = table = nn.Embedding(words, dim)
            layers = [
                Layer(dim, self_attn=LlamaAttention(dim, heads), mlp=LlamaMLP(dim)) for _ in "12"
            ]
        self.h = nn.ModuleList(layers)
        self.lm_head = nn.Linear(dim, words, bias=False)
        if kind == "gpt2":
            self.lm_head.weight = table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = (self.wte if hasattr(self, "wte") else self.embed_tokens)(words[:, :-1])
        for layer in self.h:
            x = layer(x)
        return F.cross_entropy(self.lm_head(x).flatten(0, 1), words[:, 1:].flatten())


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_trains_as_one_process(kind: str) -> None:
    with mesh(tp=hvd.size()) as made:
        whole = Model(kind)
        model = par.tensor_parallel(copy.deepcopy(whole), made.tp, plan(kind))
        batches = [torch.randint(23, (3, 9)) for _ in range(3)]
        expected = train(whole, adamw(whole), lambda model, x: model(x), batches)
        got = train(model, adamw(model), lambda model, x: model(x), batches)
        torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-10, atol=0)
        state, theirs = par.whole_state_dict(model), whole.state_dict()
        assert state.keys() == theirs.keys()
        for name, value in theirs.items():
            transposed = kind == "gpt2" and ".c_" in name and value.dim() == 2
            ours = state[name].t() if transposed else state[name]
            torch.testing.assert_close(ours, value, rtol=1e-10, atol=1e-10)
        if kind == "gpt2":
            assert model.lm_head.weight is model.wte.weight
        largest = max(parameter.numel() for parameter in model.parameters())
        assert largest < max(parameter.numel() for parameter in whole.parameters())


def plan(kind: str) -> par.Plan:
    return par.GPT2 if kind == "gpt2" else par.LLAMA


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"*nothing": "row"}, r"'\*nothing' match no module. There are .*h.0.mlp.c_fc"),
        ({"*c_fc": "columns"}, "= 'columns' is none of column, row, vocab"),
        ({"h.0.first": "column"}, "h.0.first is a LayerNorm, and no linear layer"),
        ({"h.1.attn.c_attn": "vocab"}, "h.1.attn.c_attn is a Conv1D, and no nn.Embedding"),
        ({"*.attn": par.Numbers(("depth",))}, "h.0.attn.depth is None"),
        ({"*mlp.c_fc": par.Column(multiple_of="width")}, "parent of h.0.mlp.c_fc has no number"),
        (
            {"lm_head": "row"},
            r"lm_head\.weight, wte\.weight are one parameter",
        ),
    ],
)
def test_what_is_wrong_with_a_plan(change: par.Plan, message: str, need_ranks: None) -> None:
    with mesh(tp=hvd.size()) as made:
        model = Model("gpt2")
        kinds = [type(module) for module in model.modules()]
        rest = {name: style for name, style in par.GPT2.items() if name not in change}
        with pytest.raises(ValueError, match=message):
            par.tensor_parallel(model, made.tp, {**change, **rest})
        assert [type(module) for module in model.modules()] == kinds
        assert model.h[0].attn.num_heads == 24


def test_shared_parameters_are_divided_together(need_ranks: None) -> None:
    with mesh(tp=hvd.size()) as made:
        without = {name: style for name, style in par.GPT2.items() if name != "*lm_head"}
        with pytest.raises(ValueError, match=r"lm_head\.weight, wte\.weight are one"):
            par.tensor_parallel(Model("gpt2"), made.tp, without)


def test_heads_that_cant_be_divided(need_ranks: None) -> None:
    with mesh(tp=hvd.size()) as made, pytest.raises(ValueError, match=r"1 features of 48 of .*q_p"):
        par.tensor_parallel(Model("llama", heads=1), made.tp, par.LLAMA)


def test_flags_are_kept() -> None:
    with mesh(tp=hvd.size()) as made:
        model = Model("llama").float().eval()
        model.embed_tokens.weight.requires_grad_(False)
        par.tensor_parallel(model, made.tp, par.LLAMA)
        assert not model.embed_tokens.weight.requires_grad
        assert not model.embed_tokens.training
        assert model.h[0].mlp.up_proj.weight.dtype == torch.float32
        assert model.h[0].mlp.up_proj.weight.requires_grad


class Twice(nn.Module):
    """Has one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.up_again, self.down_again = self.up, self.down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_again(self.up_again(self.down(self.up(x)).relu()).relu())


def test_a_module_at_two_places_stays_one() -> None:
    with mesh(tp=hvd.size()) as made:
        torch.manual_seed(3)
        whole = Twice()
        model = par.tensor_parallel(
            copy.deepcopy(whole),
            made.tp,
            {"up": par.Column(multiple_of=1), "down": par.Row(multiple_of=1)},
        )
        assert model.up_again is model.up
        assert model.down_again is model.down
        x = torch.ones(3, 8)
        torch.testing.assert_close(model(x), whole(x))
