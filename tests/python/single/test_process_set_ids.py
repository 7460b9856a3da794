"""Listing process sets while one is removed."""

from __future__ import annotations

import pytest

import horoscale.numpy as hvd
from horoscale._core import runtime


def test_a_set_that_goes_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    hvd.init()
    try:
        query = runtime._int_list
        listed = iter([[0, 99]])  # 99 is removed before its ranks are queried
        monkeypatch.setattr(runtime, "_int_list", lambda what: next(listed, None) or query(what))
        assert hvd.get_process_set_ids_and_ranks() == {0: [0]}
    finally:
        hvd.shutdown()
