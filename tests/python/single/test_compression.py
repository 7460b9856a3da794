"""The encoding of each parameter, and the arguments that compressors reject."""

from __future__ import annotations

import pytest

from horoscale._core import Encoding
from horoscale.common.compression import INT4, INT8, Selection, adaptive, selection, topk


def chosen(select: Selection, name: str, *shape: int) -> Encoding:
    """The encoding of a parameter of this shape."""
    elements = 1
    for extent in shape:
        elements *= extent
    return select.of(name, None, elements, len(shape))


def encoding_of(compressor: object) -> Encoding:
    """Compressors as the bindings know them."""
    encoding: Encoding = compressor.encoding  # type: ignore[attr-defined]
    return encoding


def test_a_lossy_encoding_for_all_spares_what_gains_nothing() -> None:
    select = Selection(Encoding.INT8)
    assert chosen(select, "encoder.0.weight", 64, 64) == Encoding.INT8
    assert chosen(select, "encoder.0.bias", 4096) == Encoding.NONE
    assert chosen(select, "encoder.0.weight", 8, 8) == Encoding.NONE
    for name in ("embedding.weight", "transformer.wte.weight", "tok_embeddings", "model/Embed:0"):
        assert chosen(select, name, 1000, 64) == Encoding.NONE, name


def test_a_16_bit_encoding_spares_nothing() -> None:
    assert chosen(Selection(Encoding.BFLOAT16), "bias", 8) == Encoding.BFLOAT16


def test_of_a_table_the_first_pattern_counts() -> None:
    table = {"*.bias": INT4, "encoder.*": INT8}
    select = selection(table, encoding_of)
    assert select.is_lossy
    assert chosen(select, "encoder.0.bias", 8) == Encoding.INT4
    assert chosen(select, "encoder.0.weight", 8, 8) == Encoding.INT8
    assert chosen(select, "decoder.0.weight", 64, 64) == Encoding.NONE
    assert select == selection(dict(table), encoding_of)


def test_a_function_is_asked_for_each_parameter() -> None:
    select = selection(lambda name, parameter: INT8 if name == "a" else INT4, encoding_of)
    assert chosen(select, "a", 2) == Encoding.INT8
    assert chosen(select, "b", 2) == Encoding.INT4


def test_the_same_function_selects_the_same() -> None:
    def function(name: str, parameter: object) -> object:
        return INT8

    def other(compressor: object) -> Encoding:
        return encoding_of(compressor)

    assert selection(function, encoding_of) == selection(function, other)
    assert selection(function, encoding_of) != selection(lambda *_: INT8, encoding_of)


def test_patterns_are_strings() -> None:
    with pytest.raises(ValueError, match="patterns of names"):
        selection({3: INT8}, encoding_of)


@pytest.mark.parametrize("ratio", [0, -0.1, 1.1, float("nan")])
def test_shares_that_are_none(ratio: float) -> None:
    with pytest.raises(ValueError, match="a share of the elements"):
        topk(ratio)


@pytest.mark.parametrize("error", [0, -0.1, 6.1, float("nan"), 0.00001])
def test_errors_that_no_adaptive_compressor_has(error: float) -> None:
    with pytest.raises(ValueError, match="an error is at least"):
        adaptive(error)


def test_an_adaptive_compressor_may_lose() -> None:
    assert repr(adaptive(0.25)) == "Compression.adaptive(0.25)"
    assert adaptive() == adaptive(0.1)
    assert adaptive(0.25).encoding == Encoding.adaptive(2500)
    assert adaptive().encoding.is_lossy
    select = Selection(adaptive().encoding)
    assert chosen(select, "encoder.0.weight", 64, 64) == adaptive().encoding
    assert chosen(select, "encoder.0.bias", 4096) == Encoding.NONE


def test_compressors_say_what_they_are() -> None:
    assert repr(topk(0.01)) == "Compression.topk(0.01)"
    assert topk(0.01) == topk(0.01)
    assert topk(0.01).encoding == Encoding.top_k(41)
    assert topk(1e-9).encoding == Encoding.top_k(1)
    assert INT8.encoding.is_lossy
    assert not Encoding.BFLOAT16.is_lossy
