"""The styles of a plan for tensor_parallel(), and plans for other libraries' models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

# A number, the name of an attribute of the parent module, such as "head_dim", or a product of
# several.
Unit: TypeAlias = int | str | tuple[int | str, ...]


@dataclass(frozen=True)
class Column:
    """Divides a linear layer's output features.

    Attributes:
        parts: the relative sizes of their parts, such as (1, 1, 1) for queries, keys and values.
        multiple_of: the size of an indivisible unit, such as the width of a head. If the number of
            units does not divide evenly, the lower ranks have one more.
        gather_output: whether to gather the output on all ranks.
    """

    parts: tuple[int, ...] = (1,)
    multiple_of: Unit = 1
    gather_output: bool = False


@dataclass(frozen=True)
class Row:
    """Divides a linear layer's input features, in the same way as the preceding layer's output.

    Attributes:
        multiple_of: as in Column.
    """

    multiple_of: Unit = 1


@dataclass(frozen=True)
class Vocab:
    """Divides the words of an embedding."""


@dataclass(frozen=True)
class Numbers:
    """Divides integer attributes of a module that count divided units, such as its heads.

    Attributes:
        names: the names of the attributes; or pairs of a name and the size of an indivisible unit.
    """

    names: tuple[str | tuple[str, Unit], ...]


@dataclass(frozen=True)
class Input:
    """A module whose column-parallel layers all multiply its input: queries, keys and values.

    The input's gradient is summed once for all of them. Under sequence parallelism, the input is
    gathered once, before the module reads its shape.

    Attributes:
        argument: the name of the input, for calls without positional arguments.
    """

    argument: str = "hidden_states"


@dataclass(frozen=True)
class Sequence:
    """Consecutive modules between which `sequence_parallel=True` divides the sequence.

    For a list of modules, the style applies to its children, otherwise to the module. They run in
    the order of the model. The input of the first and the output of the last are whole.

    Attributes:
        dim: the sequence dimension.
        argument: the name of the input, for calls without positional arguments.
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

# For transformers' GPT2LMHeadModel and LlamaForCausalLM, and for models with the same structure.
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
