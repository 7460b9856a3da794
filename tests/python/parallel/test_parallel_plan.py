"""Models like those of other libraries, divided by a plan, train as one process does."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.parallel import EXACT, MARKS, adamw, close, mesh, named, train
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
        self.num_key_value_groups = 2
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim // 2, bias=False)
        self.v_proj = nn.Linear(dim, dim // 2, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # As in transformers: from the shape of the input, which must be the whole sequence's.
        x, shape = hidden_states, hidden_states.shape[:-1]
        parts = (layer(x).view(*shape, -1) for layer in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(attend(*parts, self.head_dim))


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
        first, second = (getattr(self, name) for name in self.names)
        normalized = self.first(x)
        is_llama = isinstance(first, LlamaAttention)
        x = x + (first(hidden_states=normalized) if is_llama else first(normalized))
        return x + second(self.second(x))


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
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, words, bias=False)
        if kind == "gpt2":
            self.lm_head.weight = table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = (self.wte if hasattr(self, "wte") else self.embed_tokens)(words[:, :-1])
        for layer in self.h:
            x = layer(x)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("heads", [24, 10])  # of 10, some ranks have one more, with its keys
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_trains_as_one_process(kind: str, heads: int, sequence_parallel: bool) -> None:
    with mesh(tp=hvd.size()) as made:
        whole = Model(kind, dim=2 * heads, heads=heads)
        for norm in (whole.norm, whole.h[0].first):
            nn.init.normal_(norm.weight)
        model = par.tensor_parallel(copy.deepcopy(whole), made.tp, plan(kind), sequence_parallel)
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
    whole = par.GPT2 if kind == "gpt2" else par.LLAMA
    names = {name: style for name, style in whole.items() if style != "sequence"}
    return names | {"h": "sequence", "norm": "sequence"}


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_what_lies_between_is_divided_along_the_sequence(kind: str) -> None:
    with mesh(tp=hvd.size()) as made:
        model = par.tensor_parallel(Model(kind), made.tp, plan(kind), sequence_parallel=True)
        lengths = []
        for module in (model.h[0].first, model.h[1].second, model.norm):
            module.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
        model(torch.randint(23, (2, 15)))
        assert lengths == [par.split_sizes(14, hvd.size())[made.tp.rank]] * 3


def test_a_sequence_shorter_than_the_ranks_are_many() -> None:
    """As in text generation, word by word."""
    with mesh(tp=hvd.size()) as made:
        whole = Model("llama")
        model = par.tensor_parallel(copy.deepcopy(whole), made.tp, plan("llama"), True)
        words = torch.randint(23, (2, 2))
        torch.testing.assert_close(model(words), whole(words), rtol=1e-10, atol=0)


def test_a_sequence_that_is_divided_from_an_input_on(need_ranks: None) -> None:
    """The first module divides it, then gathers it for its layers."""
    with mesh(tp=hvd.size()) as made:
        whole = nn.Module()
        whole.mlps = nn.ModuleList([LlamaMLP(6), LlamaMLP(6)])
        model = copy.deepcopy(whole)
        columns = {f"mlps.?.{name}_proj": "column" for name in ("gate", "up")}
        others = {"mlps.?.down_proj": "row", "mlps.?": "input", "mlps": "sequence"}
        x = torch.randn(2, 9, 6)
        par.tensor_parallel(model, made.tp, columns | others, sequence_parallel=True)
        inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
        outputs = []
        for of, values in zip((whole, model), inputs, strict=True):
            for mlp in of.mlps:
                values = mlp(values)
            values.square().sum().backward()
            outputs.append(values)
        torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(inputs[1].grad, inputs[0].grad, rtol=1e-10, atol=1e-12)


def test_one_sum_for_all_layers_of_an_input(
    need_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mesh(tp=hvd.size()) as made:
        model = par.tensor_parallel(Model("llama"), made.tp, plan("llama"))
        sums = []
        reduce = par.regions._reduce
        monkeypatch.setattr(
            par.regions, "_reduce", lambda x, axis: sums.append(1) or reduce(x, axis)
        )
        loss = model(torch.randint(23, (2, 5)))
        sums.clear()
        loss.backward()
        assert len(sums) == 4  # attention and MLP of two layers


def test_dropout_of_what_is_divided_differs(need_ranks: None) -> None:
    with mesh(tp=hvd.size()) as made:
        model = Model("gpt2")
        model.h[0].add_module("drop", nn.Dropout(0.5))
        par.tensor_parallel(model, made.tp, plan("gpt2"), sequence_parallel=True)
        dropped = model.h[0].drop(torch.ones(64))
        masks = hvd.allgather(dropped.unsqueeze(0))
        assert len({tuple(mask) for mask in masks.tolist()}) == hvd.size()
        assert len(set(hvd.allgather_object(torch.rand(()).item()))) == 1


def test_norms_that_are_frozen_first_learn_later(need_ranks: None) -> None:
    with mesh(tp=hvd.size()) as made:
        whole = Model("llama")
        whole.norm.weight.requires_grad_(False)
        model = par.tensor_parallel(copy.deepcopy(whole), made.tp, plan("llama"), True)
        assert not model.norm.weight.requires_grad
        words = torch.randint(23, (2, 9))
        for one in (whole, model):
            one.norm.weight.requires_grad_(True)
            one(words).backward()
        torch.testing.assert_close(
            model.norm.weight.grad, whole.norm.weight.grad, rtol=1e-10, atol=1e-12
        )


def test_norms_of_a_model_that_gets_its_memory_later(need_ranks: None) -> None:
    """Modules created by to_empty() lack the hooks of the previous ones."""
    with mesh(tp=hvd.size()) as made:
        whole = Model("llama")
        with torch.device("meta"):
            model = Model("llama")
        par.tensor_parallel(model, made.tp, plan("llama"), sequence_parallel=True)
        model.to_empty(device="cpu")
        par.load_whole_state_dict(model, whole.state_dict())
        words = torch.randint(23, (2, 9))
        for one in (whole, model):
            one(words).backward()
        torch.testing.assert_close(
            model.norm.weight.grad, whole.norm.weight.grad, rtol=1e-10, atol=1e-12
        )


class Mixer(nn.Module):
    """Attention that the plan does not know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1)


class CrossAttention(Mixer):
    pass


@pytest.mark.parametrize(
    ("inner", "change", "message"),
    [
        (CrossAttention(), {}, r"h\.0\.inner is a CrossAttention, which needs the whole sequence"),
        (nn.Dropout1d(), {}, r"h\.0\.inner is a Dropout1d; for a divided sequence only Dropout"),
        (nn.Embedding(8, 2), {"*inner": "vocab"}, r"h\.0\.inner cannot be Vocab\(\) where"),
        (Mixer(), {"*inner": "sequence"}, r"h\.0\.inner is inside another module that divides"),
        (Mixer(), {"norm": par.Sequence(dim=0)}, "h and norm divide the sequence differently"),
        (Mixer(), {"*inner": "input"}, r"h\.0\.inner is Input\(\), but .* it has none"),
    ],
)
def test_why_a_sequence_cant_be_divided(
    inner: nn.Module, change: par.Plan, message: str, need_ranks: None
) -> None:
    with mesh(tp=hvd.size()) as made:
        model = Model("gpt2")
        model.h[0].add_module("inner", inner)
        kinds = [type(module) for module in model.modules()]
        with pytest.raises(ValueError, match=message):
            par.tensor_parallel(model, made.tp, {**plan("gpt2"), **change}, True)
        assert [type(module) for module in model.modules()] == kinds


def test_more_reasons_why_a_sequence_cant_be_divided(need_ranks: None) -> None:
    with mesh(tp=hvd.size()) as made:
        model = Model("llama")
        without = {name: style for name, style in plan("llama").items() if style != "sequence"}
        with pytest.raises(ValueError, match="does not define between which modules"):
            par.tensor_parallel(model, made.tp, without, sequence_parallel=True)
        par.tensor_parallel(model, made.tp, plan("llama"), sequence_parallel=True)
        with pytest.raises(ValueError, match=r"h\.0 needs a tensor as its first argument or as"):
            model.h[0](x=torch.ones(2, 4, 48))
        tied = Model("llama")
        tied.table = nn.LayerNorm(48)
        tied.table.weight = tied.h[0].first.weight
        with pytest.raises(ValueError, match=r"h\.0\.first\.weight is also table\.weight, where"):
            par.tensor_parallel(tied, made.tp, plan("llama"), sequence_parallel=True)


@pytest.mark.parametrize("first", [True, False])
def test_a_module_that_is_used_outside_as_well(first: bool, need_ranks: None) -> None:
    """Whichever of its names comes first."""
    with mesh(tp=hvd.size()) as made:
        model = Model("llama")
        model.also = model.h[1].first
        if first:
            model.h = model._modules.pop("h")
        with pytest.raises(ValueError, match=r"h\.1\.first\.weight is also also\.weight, where"):
            par.tensor_parallel(model, made.tp, plan("llama"), sequence_parallel=True)


class Recurrent(nn.Module):
    """Runs its blocks twice; some of its dropouts are one module."""

    def __init__(self) -> None:
        super().__init__()
        ends, block = [LlamaMLP(6), nn.LayerNorm(6)], nn.Sequential(nn.Dropout(0.5), LlamaMLP(6))
        block.add_module("again", block[0])
        self.blocks = nn.ModuleList([ends[0], block, block, ends[1]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_modules_at_several_places_of_a_divided_sequence(need_ranks: None) -> None:
    layers = {f"*.{name}_proj": "column" for name in ("gate", "up")} | {"*.down_proj": "row"}
    with mesh(tp=hvd.size()) as made:
        whole = Recurrent()
        model = copy.deepcopy(whole)
        par.tensor_parallel(model, made.tp, {**layers, "blocks": "sequence"}, True)
        block = model.blocks[1]
        assert block is model.blocks[2]
        assert block[0] is block.again
        assert type(block[0]) is not nn.Dropout
        x = torch.randn(2, 9, 6)
        for one in (whole, model):
            one.eval()(x).square().sum().backward()
        close(par.whole_gradients(model), {n: one.grad for n, one in named(whole).items()})
        whole.blocks.append(whole.blocks[0])
        with pytest.raises(ValueError, match=r"blocks\.0 is also blocks\.4: the modules where"):
            par.tensor_parallel(whole, made.tp, {**layers, "blocks": "sequence"}, True)


class Routed(nn.Module):
    """An MLP whose result is weighted by a router, plus its input."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.up, self.down = nn.Linear(6, 1), nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.router(x).sigmoid() * self.down(self.up(x).relu())


@pytest.mark.parametrize("is_input", [True, False])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_layers_of_an_input_that_are_whole(
    is_input: bool, sequence_parallel: bool, need_ranks: None
) -> None:
    """Their contribution counts once, like the module's own."""
    styles = {"*.up": "column", "*.down": "row", "blocks": "sequence"}
    if is_input:
        styles["blocks.?"] = "input"
    with mesh(tp=hvd.size()) as made:
        whole = Recurrent()
        whole.blocks = nn.ModuleList([Routed(), Routed()])
        model = copy.deepcopy(whole)
        if is_input and sequence_parallel:
            with pytest.raises(ValueError, match=r"blocks\.0\.router\.weight is not divided, and"):
                par.tensor_parallel(model, made.tp, styles, True)
            return
        par.tensor_parallel(model, made.tp, styles, sequence_parallel)
        xs = [torch.randn(2, 9, 6).requires_grad_()]
        xs.append(xs[0].detach().clone().requires_grad_())
        for one, x in zip((whole, model), xs, strict=True):
            one(x).square().sum().backward()
        torch.testing.assert_close(xs[1].grad, xs[0].grad, **EXACT)
        close(par.whole_gradients(model), {n: one.grad for n, one in named(whole).items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"*nothing": "row"}, r"'\*nothing' match no module. The modules are .*h.0.mlp.c_fc"),
        ({"*c_fc": "columns"}, "= 'columns' is not one of column, row, vocab, input, sequence"),
        ({"h.0.first": "column"}, "h.0.first is a LayerNorm, not a linear layer"),
        ({"h.1.attn.c_attn": "vocab"}, "h.1.attn.c_attn is a Conv1D, not an nn.Embedding"),
        ({"*.attn": par.Numbers(("depth",))}, "h.0.attn.depth is None"),
        ({"*mlp.c_fc": par.Column(multiple_of="width")}, "parent of h.0.mlp.c_fc has no number"),
        ({"*mlp.c_fc": par.Column(multiple_of=5)}, "192 features of h.0.mlp.c_fc are not"),
        ({"*mlp": "input", "*mlp.c_fc": "row"}, r"h\.0\.mlp is Input.* it has h\.0\.mlp\.c_fc, "),
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
    with mesh(tp=hvd.size()) as made:
        with pytest.raises(ValueError, match=r"1 features of 48 of .*q_p.* ranks of axis tp"):
            par.tensor_parallel(Model("llama", heads=2), made.tp, plan("llama"))
        with pytest.raises(ValueError, match=r"1 units of h\.0\.attn\.num_heads can't be"):
            par.tensor_parallel(Model("gpt2", heads=1), made.tp, plan("gpt2"))


def test_ranks_that_disagree_hear_in_what(need_ranks: None) -> None:
    last = hvd.rank() == hvd.size() - 1
    where = rf"on rank 0, .* on rank {hvd.size() - 1}"
    with mesh(tp=hvd.size()) as made:
        for sequence_parallel, words, changed, message in (
            (last, 23, {}, f"axis tp: sequence_parallel is False {where}"),
            (False, 23 + last, {}, rf"wte.weight is torch.float64 of \(23, 48\) {where}"),
            (False, 23, {"x": "row"} if last else {}, f"the plan is .* {where}"),
        ):
            model = Model("gpt2", words)
            with pytest.raises(hvd.MismatchError, match=message):
                par.tensor_parallel(model, made.tp, {**plan("gpt2"), **changed}, sequence_parallel)
            assert model.h[0].attn.num_heads == 24


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
