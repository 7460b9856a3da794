"""Unmodified GPT-2 and Llama of transformers, divided by plans, train as one process does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.parallel import EXACT, MARKS, adamw, mesh, train
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

transformers = pytest.importorskip("transformers")
pytestmark = [
    *MARKS,
    # `make torch-libraries` runs this over hosts, too.
    pytest.mark.filterwarnings("ignore:tensor parallelism spans hosts"),
]
WORDS = 31
PLANS = {"gpt2": par.GPT2, "llama": par.LLAMA}


def make(kind: str, heads: int, dropout: float = 0.0, attention: str = "sdpa") -> nn.Module:
    common: dict[str, Any] = {
        "vocab_size": WORDS,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": attention,
    }
    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                **common,
                n_positions=32,
                n_embd=4 * heads,
                n_layer=2,
                n_head=heads,
                attn_pdrop=dropout,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
            )
        ).double()
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **common,
            hidden_size=4 * heads,
            intermediate_size=50,
            num_hidden_layers=2,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            attention_dropout=dropout,
        )
    ).double()


@pytest.fixture(autouse=True)
def double_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama's norms round to float32, which would hide differences."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (x * scale)

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)


def loss_of(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    """In double precision; transformers computes it in float32."""
    logits = model(words[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("heads", [24, 10])  # of 10, or of 5 pairs, some ranks have one more
@pytest.mark.parametrize("kind", list(PLANS))
def test_trains_as_one_process(kind: str, heads: int, sequence_parallel: bool) -> None:
    with mesh(tp=hvd.size()) as made:
        whole = make(kind, heads)
        model = copy.deepcopy(whole)
        par.tensor_parallel(model, made.tp, PLANS[kind], sequence_parallel)
        batches = [torch.randint(WORDS, (3, 14)) for _ in range(3)]
        expected = train(whole, adamw(whole), loss_of, batches)
        got = train(model, adamw(model), loss_of, batches)
        torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), **EXACT)
        state = par.whole_state_dict(model)
        gradients = par.whole_gradients(model)
        for name, parameter in whole.named_parameters():
            for ours, theirs in (
                (state[name], parameter.detach()),
                (gradients[name], parameter.grad),
            ):
                transposed = kind == "gpt2" and ".c_" in name and theirs.dim() == 2
                torch.testing.assert_close(ours.t() if transposed else ours, theirs, **EXACT)


@pytest.mark.parametrize("kind", list(PLANS))
def test_checkpoints_and_text(kind: str) -> None:
    """Gradients of recomputed layers, and words one by one from a cache."""
    with mesh(tp=hvd.size()) as made:
        whole = make(kind, 8)
        model = par.tensor_parallel(copy.deepcopy(whole), made.tp, PLANS[kind], True)
        # transformers 5.24 renamed it.
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)()
        words = torch.randint(WORDS, (2, 9))
        for one in (whole, model):
            loss_of(one, words).backward()
        gradients = par.whole_gradients(model)
        for name, parameter in whole.named_parameters():
            if parameter.dim() == 1:
                torch.testing.assert_close(gradients[name], parameter.grad, **EXACT)
        texts = [
            one.eval().generate(words, max_new_tokens=5, do_sample=False, eos_token_id=None)
            for one in (whole, model)
        ]
        assert torch.equal(*texts)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", list(PLANS))
def test_heads_of_all_ranks_drop_other_weights(
    kind: str, attention: str, need_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mesh(tp=hvd.size()) as made:
        model = make(kind, 8, dropout=0.5, attention=attention)
        par.tensor_parallel(model, made.tp, PLANS[kind])
        par.rng.seed(5, made)
        drawn: list[float] = []

        def spied(function: Callable[..., Any]) -> Callable[..., Any]:
            def spy(*args: Any, **kwargs: Any) -> Any:
                drawn.append(torch.initial_seed())
                return function(*args, **kwargs)

            return spy

        monkeypatch.setattr(F, "dropout", spied(F.dropout))
        kernel = spied(F.scaled_dot_product_attention)
        monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
        words = torch.randint(WORDS, (2, 9))
        loss_of(model.train(), words).backward()
        seeds = hvd.allgather_object(drawn)
        assert any(len(set(of_call)) == hvd.size() for of_call in zip(*seeds, strict=True))
        # Undivided parts continue with the same random numbers on all ranks, and are equal.
        assert len(set(hvd.allgather_object(torch.rand(()).item()))) == 1
        norm = next(
            one for name, one in model.named_parameters() if "ln_f" in name or "norm" in name
        )
        assert len(set(hvd.allgather_object(norm.grad.sum().item()))) == 1


def test_attention_that_drops_nothing_is_left_alone() -> None:
    with mesh(tp=hvd.size()) as made:
        model = par.tensor_parallel(make("llama", 8), made.tp, par.LLAMA)
        assert model.config._attn_implementation == "sdpa"


def test_attention_that_cant_be_replaced_is_warned_of(need_ranks: None) -> None:
    with mesh(tp=hvd.size()) as made:
        model = make("llama", 8, dropout=0.5)
        model.config._attn_implementation = "flex_attention"
        with pytest.warns(UserWarning, match="dropout of 'flex_attention' attention has the same"):
            par.tensor_parallel(model, made.tp, par.LLAMA)
