"""What a plan says of the modules of a model, and plans for the models of other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

# A number, the attribute of the parent module that says it, such as "head_dim", or the product of
# several.
Unit: TypeAlias = int | str | tuple[int | str, ...]


@dataclass(frozen=True)
class Column:
    """How a linear layer's output features are divided.

    Attributes:
        parts: the shares of what they consist of: (1, 1, 1) for queries, keys and values.
        multiple_of: what of the features can't be divided, such as the width of a head. Lower ranks
            have one more of it where their number is not divisible.
        gather_output: whether the output is whole on all ranks.
    """

    parts: tuple[int, ...] = (1,)
    multiple_of: Unit = 1
    gather_output: bool = False


@dataclass(frozen=True)
class Row:
    """How a linear layer's input features are divided: as the output of the layer before it.

    Attributes:
        multiple_of: as Column has it.
    """

    multiple_of: Unit = 1


@dataclass(frozen=True)
class Vocab:
    """The words of an embedding are divided."""


@dataclass(frozen=True)
class Numbers:
    """Attributes of a module that count what is divided, such as its heads.

    Attributes:
        names: the attributes, which are integers; or pairs of one and what of it can't be divided.
    """

    names: tuple[str | tuple[str, Unit], ...]


@dataclass(frozen=True)
class Input:
    """A module whose column-parallel layers all multiply its input: queries, keys and values.

    The input's gradient is added up once for all of them and, under sequence parallelism, the input
    is gathered once, before the module looks at its shape.

    Attributes:
        argument: the name of the input, for callers that give no positional one.
    """

    argument: str = "hidden_states"


@dataclass(frozen=True)
class Sequence:
    """Modules one after the other, between which `sequence_parallel=True` divides the sequence.

    The children of a list are meant, and otherwise the module. They are in the order in which the
    model has them. What the first one takes and the last one returns is whole.

    Attributes:
        dim: the dimension that is the sequence.
        argument: the name of the input, for callers that give no positional one.
    """

    dim: int = 1
    argument: str = "hidden_states"


Style: TypeAlias = Column | Row | Vocab | Numbers | Input | Sequence
BY_NAME: dict[str, Style] = {
    "column": Column(),
    "row": Row(),
    "vocab": Vocab(),
    "input": Input(),
    "sequence": Sequence(),
}
Plan: TypeAlias = Mapping[str, Style | Literal["column", "row", "vocab", "input", "sequence"]]

# Of transformers' GPT2LMHeadModel and LlamaForCausalLM, and of models of their shape.
GPT2: Plan = {
    "*wte": "vocab",
    "*attn.c_attn": Column(parts=(1, 1, 1), multiple_of="head_dim"),
    "*attn.c_proj": Row(multiple_of="head_dim"),
    "*attn": Numbers(("num_heads", ("split_size", "head_dim"))),
    "*mlp.c_fc": "column",
    "*mlp.c_proj": "row",
    "*lm_head": Column(gather_output=True),
    "*.h": "sequence",
    "*.ln_f": "sequence",
}
_GROUP = ("head_dim", "num_key_value_groups")  # a head of keys, and the queries that share it
LLAMA: Plan = {
    "*embed_tokens": "vocab",
    "*self_attn": "input",
    "*self_attn.q_proj": Column(multiple_of=_GROUP),
    "*self_attn.[kv]_proj": Column(multiple_of="head_dim"),
    "*self_attn.o_proj": Row(multiple_of=_GROUP),
    "*mlp": "input",
    "*mlp.gate_proj": "column",
    "*mlp.up_proj": "column",
    "*mlp.down_proj": "row",
    "*lm_head": Column(gather_output=True),
    "*.layers": "sequence",
    "*.norm": "sequence",
}
