"""Whole weights in safetensors files, from divided models and into them."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.parallel import MARKS, mesh
from support.parallel_checkpoints import OneProcess, OnMesh
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.checkpoint import weights

pytestmark = MARKS


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that all ranks share, created by the first one and removed at the end."""
    yield Path(hvd.broadcast_object(str(tmp_path))) / "weights"
    hvd.barrier()


def meshes() -> list[dict[str, int]]:
    if hvd.size() == 4:
        return [{"tp": 2, "pp": 2}]
    return [{"tp": hvd.size()}, {"dp": hvd.size()}, {"pp": min(hvd.size(), 3)}]


def test_weights_go_from_any_mesh_to_any_mesh(folder: Path) -> None:
    files = pytest.importorskip("safetensors.torch")
    whole = OneProcess().model.state_dict()
    for extents in meshes():
        with mesh(**extents) as made:
            whole = {name: one.double() for name, one in whole.items()}
            training = OnMesh(made)
            training.load_whole(whole)
            path = folder / "one.safetensors"
            par.save_weights(path, training.model, made)
            saved = files.load_file(path)
            # A tied parameter is stored once, unless stages have separate copies.
            missing = set(whole) - set(saved)
            assert missing == ({"head.weight"} if made.pp.size == 1 else set())
            assert all(torch.equal(one, whole[name]) for name, one in saved.items())
            other = OnMesh(made, seed=5)
            par.load_weights(path, other.model, made)
            assert all(torch.equal(one, whole[name]) for name, one in other.whole().items())
            hvd.barrier()


def test_large_weights_are_in_several_files(folder: Path) -> None:
    pytest.importorskip("safetensors")
    with mesh(tp=hvd.size()) as made:
        training = OnMesh(made)
        par.save_weights(folder, training.model, made, max_file_bytes=20_000)
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        names = sorted(set(index["weight_map"].values()))
        assert len(names) > 2
        present = sorted(one.name for one in folder.iterdir())
        assert present == [*names, "model.safetensors.index.json"]
        other = OnMesh(made, seed=5)
        par.load_weights(folder, other.model, made)
        whole = training.whole()
        assert all(torch.equal(one, whole[name]) for name, one in other.whole().items())
        hvd.barrier()
        if hvd.rank() == 0:
            os.truncate(folder / names[1], 100)
        hvd.barrier()
        with pytest.raises(par.CheckpointError, match=f"{names[1]} can't be read"):
            par.load_weights(folder, other.model, made)
        hvd.barrier()
        if hvd.rank() == 0:
            (folder / names[1]).unlink()
        hvd.barrier()
        with pytest.raises(par.CheckpointError, match=f"{names[1]} can't be read"):
            par.load_weights(folder, other.model, made)


def test_other_types_and_shapes(folder: Path) -> None:
    pytest.importorskip("safetensors")
    with mesh(dp=hvd.size()) as made:
        model = nn.Module()
        for dtype in (torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn):
            name = f"of_{str(dtype)[6:]}"
            model.register_buffer(name, torch.tensor([[1, 0, 1]]).to(dtype))
            model.register_buffer(f"{name}_number", torch.tensor(1).to(dtype))
        par.save_weights(folder, model, made)
        before = {name: one.clone() for name, one in model.state_dict().items()}
        for one in model.buffers():
            one.zero_()
        par.load_weights(folder, model, made)
        after = model.state_dict()
        assert all(torch.equal(after[name].float(), one.float()) for name, one in before.items())


def test_names_and_shapes_that_differ(folder: Path) -> None:
    pytest.importorskip("safetensors")
    with mesh(tp=hvd.size()) as made:
        par.save_weights(folder, nn.ModuleDict({"first": nn.Linear(4, 4)}), made)
        with pytest.raises(par.CheckpointError, match=r"first.weight has the shape \(4, 4\) in"):
            par.load_weights(folder, nn.ModuleDict({"first": nn.Linear(3, 4)}), made)
        other = nn.ModuleDict({"second": nn.Linear(4, 4)})
        with pytest.raises(par.CheckpointError, match=r"lacks second.weight, second.bias of"):
            par.load_weights(folder, other, made)
        par.load_weights(folder, other, made, strict=False)
        with pytest.raises(par.CheckpointError, match=r"has neither model.safetensors nor"):
            par.load_weights(folder.parent, other, made)


def test_what_was_written_goes_where_a_rank_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("safetensors")
    gather = weights._gather

    def failing(tensor: Any, *others: Any) -> Any:
        if tensor.keys[0] == "1.weight":
            raise hvd.HorovodInternalError("a rank failed")
        return gather(tensor, *others)

    monkeypatch.setattr(weights, "_gather", failing)
    with mesh(tp=hvd.size()) as made:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        with pytest.raises(hvd.HorovodInternalError, match="a rank failed"):
            par.save_weights(folder, model, made, max_file_bytes=100)
        hvd.barrier()
        assert not list(folder.iterdir())


def test_without_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load: Any = importlib.import_module

    def absent(name: str, *arguments: Any) -> Any:
        if name.startswith("safetensors"):
            raise ImportError(name)
        return load(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", absent)
    with mesh(tp=hvd.size()) as made:
        with pytest.raises(ImportError, match="pip install safetensors"):
            par.save_weights(folder, nn.Linear(2, 2), made)
        with pytest.raises(ImportError, match="pip install safetensors"):
            par.load_weights(folder, nn.Linear(2, 2), made)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_models_of_transformers(kind: str, folder: Path) -> None:
    """from_pretrained() reads the original weights; save_pretrained()'s output can be divided."""
    transformers = pytest.importorskip("transformers")
    if hvd.size() == 3:
        pytest.skip("heads do not divide")
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=4
        )
        make, plan = transformers.GPT2LMHeadModel, par.GPT2
    else:
        config = transformers.LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
        make, plan = transformers.LlamaForCausalLM, par.LLAMA
    with mesh(tp=hvd.size()) as made:
        torch.set_default_dtype(torch.float32)
        whole = make(config)
        if hvd.rank() == 0:
            whole.save_pretrained(folder / "theirs")
        hvd.barrier()
        divided = par.tensor_parallel(make(config), made.tp, plan)
        par.load_weights(folder / "theirs", divided, made)
        par.save_weights(folder / "ours", divided, made)
        if hvd.rank() == 0:
            config.save_pretrained(folder / "ours")
        hvd.barrier()
        again = make.from_pretrained(folder / "ours").state_dict()
        expected = whole.state_dict()
        assert again.keys() == expected.keys()
        assert all(torch.equal(again[name], one) for name, one in expected.items())
        # A checkpoint has the same names and shapes.
        par.save(folder / "checkpoints", divided, mesh=made)
        one = make(config)
        par.load(folder / "checkpoints", one, mesh=made)
        assert all(torch.equal(value, expected[name]) for name, value in one.state_dict().items())
