"""Checkpoints of divided models: their content, what can be loaded, and what is rejected."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import shutil
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.parallel import MARKS, mesh
from support.parallel_checkpoints import OneProcess, OnMesh
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.checkpoint import checksums, saving
from horoscale.torch.parallel.checkpoint import dcp as own_dcp
from horoscale.torch.parallel.checkpoint.folders import METADATA
from horoscale.torch.parallel.checkpoint.metadata import read_metadata

pytestmark = [
    *MARKS,
    # torch's functions warn that there is no process group.
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that all ranks share, created by the first one and removed at the end."""
    yield Path(hvd.broadcast_object(str(tmp_path))) / "checkpoints"
    hvd.barrier()


class Whole(nn.Module):
    """Two layers and a buffer; one parameter has two names."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(width, 12)
        self.second = nn.Linear(12, width)
        self.tied = nn.Linear(width, 12, bias=False)
        self.tied.weight = self.first.weight
        self.register_buffer("mean", torch.randn(width))


def divided(axis: par.Axis) -> Whole:
    model = Whole()
    par.tensor_parallel(model, axis, {"first": "column", "tied": "column", "second": "row"})
    return model


def stepped(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer after one step with gradients that are equal on all meshes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    return optimizer


def same_as(model: nn.Module, whole: dict[str, torch.Tensor]) -> bool:
    ours = par.whole_state_dict(model)
    return ours.keys() == whole.keys() and all(torch.equal(ours[key], whole[key]) for key in whole)


def damage(path: Path, length: int | None) -> None:
    """Truncate a file, or remove it, on behalf of all ranks."""
    hvd.barrier()
    if hvd.rank() == 0:
        if length is None:
            path.unlink()
        else:
            os.truncate(path, length)
    hvd.barrier()


# ---------------------------------------------------------------- writing


def test_each_element_is_written_once_and_by_all_ranks(folder: Path) -> None:
    with mesh(dp=hvd.size()) as made:
        model = nn.Linear(512, 512)
        path = par.save(folder, model, mesh=made).wait()
        sizes = [one.stat().st_size for one in path.glob("*.distcp")]
        # A matrix of 2 MiB is not split, and one of 32 MiB is.
        assert len(sizes) <= 2
        large = nn.Linear(2048, 2048)
        path = par.save(folder, large, mesh=made).wait()
    if hvd.rank() == 0:
        sizes = [one.stat().st_size for one in path.glob("*.distcp")]
        needed = 2048 * 2049 * 8
        assert needed <= sum(sizes) < 1.01 * needed
        assert max(sizes) <= 16.1 * 2**20
        assert len(sizes) == min(hvd.size(), 3)


def test_a_rank_reads_what_it_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = own_dcp.Reader.read

    def counting(self: Any, pieces: Any, values: Any) -> Any:
        read.append(self.bytes_of(pieces))
        return whole(self, pieces, values)

    monkeypatch.setattr(own_dcp.Reader, "read", counting)
    monkeypatch.setattr(saving, "TILE_BYTES", 1 << 14)
    with mesh(tp=hvd.size()) as made:
        model = nn.Linear(768, 768, bias=False)
        par.save(folder, model, mesh=made)
        for kind in (par.ColumnParallelLinear, par.RowParallelLinear):
            layer = kind(768, 768, made.tp, bias=False)
            par.load(folder, layer, mesh=made)
            assert torch.equal(layer.weight, layer.shards["weight"].of(model.weight))
        needed = 768 * 768 * 8 / hvd.size()
        assert all(needed <= one < 1.4 * needed for one in read)


def test_an_asynchronous_save_is_of_the_moment_of_the_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    write = own_dcp.write

    def waiting(*arguments: Any) -> Any:
        assert may_write.wait(60)
        return write(*arguments)

    monkeypatch.setattr(own_dcp, "write", waiting)
    with mesh(tp=hvd.size()) as made:
        training = OnMesh(made, lr=0.01)
        training.load_whole(OneProcess().model.state_dict())
        training.step(0)
        extra = {"numbers": [1, 2], "tensor": torch.ones(3)}
        handle = par.save(
            folder, training.model, training.optimizer, made, extra=extra, asynchronous=True
        )
        before = {name: one.clone() for name, one in training.whole().items()}
        extra["numbers"].append(3)
        extra["tensor"].zero_()
        assert not handle.done()
        losses = [training.step(number) for number in (1, 2)]
        may_write.set()
        assert handle.wait() == handle.path == par.latest_checkpoint(folder)
        other = OnMesh(made)
        found = par.load(folder, other.model, other.optimizer, made)
        assert found is not None
        assert found["numbers"] == [1, 2]
        assert torch.equal(found["tensor"], torch.ones(3))
        assert other.whole().keys() == before.keys()
        assert all(torch.equal(one, before[name]) for name, one in other.whole().items())
        assert [other.step(number) for number in (1, 2)] == losses


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_was_written_is_not_kept(
    asynchronous: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by the handle nor by the module: a copy of all parameters is large."""
    written: list[weakref.ref[torch.Tensor]] = []
    own_of = saving._own

    def known(*arguments: Any, **options: Any) -> Any:
        own = own_of(*arguments, **options)
        written.extend(map(weakref.ref, own.tensors.values()))
        return own

    monkeypatch.setattr(saving, "_own", known)
    with mesh(tp=hvd.size()) as made:
        layer = par.ColumnParallelLinear(4, 12, made.tp)
        handle = par.save(folder, layer, mesh=made, asynchronous=asynchronous)
        assert handle.wait().is_dir()
        gc.collect()
        assert written
        assert not [one for one in written if one() is not None]


def test_the_next_save_waits_and_old_ones_go(folder: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        for step in (3, 5, 8, 9):
            par.save(folder, model, mesh=made, step=step, keep=2, asynchronous=True)
        last = par.save(folder, model, mesh=made, keep=2).wait()
        assert last.name == "checkpoint-000000000010"
        names = sorted(one.name for one in folder.iterdir())
        assert names == ["checkpoint-000000000009", "checkpoint-000000000010"]
        hvd.barrier()
        with pytest.raises(Exception, match="checkpoint of step 9 already"):
            par.save(folder, model, mesh=made, step=9)


def test_buffers_are_those_of_the_first_rank(folder: Path) -> None:
    with mesh(dp=hvd.size()) as made:
        model = nn.BatchNorm1d(4)
        model.running_mean.fill_(hvd.rank() + 1)
        model.running_var.fill_(hvd.rank() + 1)
        par.save(folder, model, mesh=made)
        par.load(folder, model, mesh=made)
        assert (model.running_mean == 1).all()
        assert (model.running_var == 1).all()


def test_tensors_without_elements(folder: Path) -> None:
    with mesh(dp=hvd.size()) as made:
        model = nn.Module()
        model.weight = nn.Parameter(torch.zeros(0, 3))
        model.register_buffer("empty", torch.zeros(2, 0, 4))
        model.register_buffer("number", torch.tensor(5))
        optimizer = stepped(model)
        path = par.save(folder, model, optimizer, made).wait()
        other = copy.deepcopy(model)
        other.number.zero_()
        found = torch.optim.AdamW(other.parameters())
        par.load(folder, other, found, made)
        assert other.number == 5
        assert found.state[other.weight]["exp_avg"].shape == (0, 3)
        assert found.state[other.weight]["step"] == 1
        state = {"model": {**other.state_dict(), "number": torch.tensor(0)}}
        dcp.load(state, checkpoint_id=path, no_dist=True)
        assert state["model"]["number"] == 5


def test_random_numbers_go_on(folder: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        par.rng.seed(7, made)
        par.save(folder, divided(made.tp), mesh=made, rng=True)
        expected = torch.rand(3)
        par.rng.seed(8, made)
        par.load(folder, divided(made.tp), mesh=made, rng=True)
        assert torch.equal(torch.rand(3), expected)
    with mesh(dp=hvd.size()) as made, pytest.raises(par.CheckpointError, match="random numbers of"):
        par.load(folder, Whole(), mesh=made, rng=True)


def test_random_numbers_are_those_of_the_first_rank_of_tp(folder: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        # The first rank has more to write than the others.
        model = nn.Linear(8, 8)
        model.register_buffer("large", torch.zeros(1 << 16))
        torch.manual_seed(hvd.rank())
        par.save(folder, model, mesh=made, rng=True)
        par.load(folder, model, mesh=made, rng=True)
        found = torch.rand(3)
        torch.manual_seed(0)
        assert torch.equal(found, torch.rand(3))


def test_transposed_weights_are_as_the_model_had_them(folder: Path) -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nf = 12
            self.weight = nn.Parameter(torch.randn(8, 12))
            self.bias = nn.Parameter(torch.randn(12))

    with mesh(tp=hvd.size()) as made:
        whole = nn.ModuleDict({"layer": Conv1D()})
        model = copy.deepcopy(whole)
        par.tensor_parallel(model, made.tp, {"layer": par.Column(multiple_of=1)})
        optimizer = stepped(model)
        par.save(folder, model, optimizer, made)
        expected = stepped(whole)
        other = nn.ModuleDict({"layer": Conv1D()})
        found = torch.optim.AdamW(other.parameters())
        par.load(folder, other, found, made)
        for ours, theirs in zip(other.parameters(), whole.parameters(), strict=True):
            assert torch.equal(ours, theirs)
            assert torch.equal(found.state[ours]["exp_avg"], expected.state[theirs]["exp_avg"])


# ---------------------------------------------------------------- torch.distributed.checkpoint


def test_torch_loads_our_checkpoints(folder: Path, tmp_path: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        whole = Whole()
        model = divided(made.tp)
        par.load_whole_state_dict(model, whole.state_dict())
        optimizer = stepped(model)
        path = par.save(folder, model, optimizer, made, extra={"step": 4}).wait()
        expected = stepped(whole)
        other = Whole()
        found = torch.optim.AdamW(other.parameters())
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        state = {
            "model": other.state_dict(),
            "optimizer": get_optimizer_state_dict(other, found, options=options),
        }
        dcp.load(state, checkpoint_id=path, no_dist=True)
        set_optimizer_state_dict(other, found, state["optimizer"], options=options)
        assert found.param_groups[0]["lr"] == 0.125
        for ours, theirs in zip(other.parameters(), whole.parameters(), strict=True):
            assert torch.equal(ours, theirs)
            for key, value in expected.state[theirs].items():
                assert torch.equal(found.state[ours][key], value)
        dcp_to_torch_save(path, tmp_path / "whole.pt")
        saved = torch.load(tmp_path / "whole.pt", weights_only=True)
        assert saved["extra"] == {"step": 4}
        assert saved["model"].keys() == whole.state_dict().keys()


@pytest.mark.parametrize("flat", [True, False])
def test_we_load_torchs_checkpoints(flat: bool, folder: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        whole = Whole()
        expected = stepped(whole)
        options = StateDictOptions(flatten_optimizer_state_dict=flat)
        state = {
            "model": get_model_state_dict(whole),
            "optimizer": get_optimizer_state_dict(whole, expected, options=options),
        }
        if hvd.rank() == 0:
            dcp.save(state, checkpoint_id=folder, no_dist=True)
        hvd.barrier()
        model = divided(made.tp)
        optimizer = torch.optim.AdamW(model.parameters())
        assert par.load(folder, model, optimizer, made) is None
        assert same_as(model, whole.state_dict())
        assert optimizer.param_groups[0]["lr"] == 0.125
        for (name, shard), of in zip(
            model.named_parameters(), dict(whole.named_parameters()).values(), strict=False
        ):
            module, _, own = name.rpartition(".")
            kept = getattr(model.get_submodule(module), "shards", {}).get(own)
            value = expected.state[of]["exp_avg"]
            assert torch.equal(
                optimizer.state[shard]["exp_avg"], value if kept is None else kept.of(value)
            )


def test_we_load_the_state_dict_of_a_model_alone(folder: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        whole = Whole()
        if hvd.rank() == 0:
            dcp.save(whole.state_dict(), checkpoint_id=folder, no_dist=True)
        hvd.barrier()
        model = divided(made.tp)
        par.load(folder, model, mesh=made)
        assert same_as(model, whole.state_dict())
        with pytest.raises(par.CheckpointError, match="no state of an optimizer"):
            par.load(folder, model, torch.optim.SGD(model.parameters()), made)


def test_names_of_models_that_checkpoints_have_too(folder: Path) -> None:
    """Like those of transformers: "model.layers.0.weight" next to "lm_head.weight"."""

    def made_anew() -> nn.ModuleDict:
        names = ("model", "extractor", "optimizer", "lm_head")
        return nn.ModuleDict({name: nn.Linear(2, 3) for name in names})

    with mesh(dp=hvd.size()) as made:
        whole = made_anew().state_dict()
        if hvd.rank() == 0:
            dcp.save(whole, checkpoint_id=folder / "alone", no_dist=True)
            dcp.save({"model": whole}, checkpoint_id=folder / "wrapped", no_dist=True)
        hvd.barrier()
        for name in ("alone", "wrapped"):
            model = made_anew()
            par.load(folder / name, model, mesh=made)
            assert same_as(model, whole)
        par.save(folder, model, mesh=made)
        other = made_anew()
        par.load(folder, other, mesh=made)
        assert same_as(other, whole)


# ---------------------------------------------------------------- rejected checkpoints


def test_files_that_are_missing_or_truncated(folder: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        path = par.save(folder, model, stepped(model), made).wait()
        for one in model.state_dict().values():
            one.fill_(7)
        file = path / f"__{hvd.size() - 1}_0.distcp"
        length = file.stat().st_size

        def load(match: str) -> None:
            hvd.barrier()
            with pytest.raises(par.CheckpointError, match=match):
                par.load(folder, model, torch.optim.AdamW(model.parameters()), made)

        damage(file, length - 10)
        load(r"__\d_0.distcp is truncated: it has \d+ bytes, and .* need \d+")
        damage(file, None)
        load(r"__\d_0.distcp is missing")
        # Including ranks that do not need that file.
        assert all((one == 7).all() for one in model.state_dict().values())
        damage(path / METADATA, 100)
        load(r"\.metadata is damaged")
        damage(path / METADATA, None)
        load(r"is no checkpoint|there is no checkpoint")
        with pytest.raises(par.CheckpointError, match="there is no checkpoint in"):
            par.load(folder / "elsewhere", model, mesh=made)


@pytest.mark.parametrize("byte", [b"\0", b"."])  # of pickle: an invalid operation, and the last one
def test_a_file_with_other_bytes(byte: bytes, folder: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        path = par.save(folder, model, mesh=made).wait()
        if hvd.rank() == 0:
            for file in path.glob("*.distcp"):
                file.write_bytes(byte * file.stat().st_size)
        hvd.barrier()
        with pytest.raises(par.CheckpointError, match=r"__\d_0.distcp is damaged: .* checksum is"):
            par.load(folder, model, mesh=made)
        hvd.barrier()
        damage(path / checksums.FILE, None)  # as in checkpoints from other programs
        hvd.barrier()
        with pytest.raises(par.CheckpointError, match=r"__\d_0.distcp is damaged; it has model\."):
            par.load(folder, model, mesh=made)


def test_one_bit_of_a_tensor_that_is_wrong(folder: Path) -> None:
    """Valid but wrong numbers: the error names the file and the tensor."""
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        name, parameter = next(iter(model.named_parameters()))
        path = par.save(folder, model, mesh=made).wait()
        found = read_metadata(path).storage_data
        info = next(info for index, info in found.items() if index.fqn == f"model.{name}")
        hvd.barrier()
        if hvd.rank() == 0:
            file = path / info.relative_path
            content = bytearray(file.read_bytes())
            at = content.find(parameter.detach().numpy().tobytes()[:16], info.offset)
            # The first rank's part may belong to another rank: then any byte in the middle.
            content[at if at >= 0 else info.offset + info.length // 2] ^= 1
            file.write_bytes(content)
        hvd.barrier()
        with pytest.raises(
            par.CheckpointError, match=rf"{info.relative_path} is damaged: model\.{name}.* checksum"
        ):
            par.load(folder, model, mesh=made)
        damage(path / checksums.FILE, 10)
        hvd.barrier()
        with pytest.raises(par.CheckpointError, match=r"checksums.json is damaged"):
            par.load(folder, model, mesh=made)


def test_a_tensor_that_is_not_all_there(folder: Path) -> None:
    """The metadata of other programs, or after manual changes, may lack a part of a tensor."""
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        path = par.save(folder, model, mesh=made).wait()
        metadata = read_metadata(path)
        key = next(
            key
            for key, one in metadata.state_dict_metadata.items()
            if len(getattr(one, "chunks", ())) > 1
        )
        before = [one.detach().clone() for one in model.parameters()]
        hvd.barrier()
        if hvd.rank() == 0:
            del metadata.state_dict_metadata[key].chunks[-1]
            (path / METADATA).write_bytes(pickle.dumps(metadata))
        hvd.barrier()
        with pytest.raises(par.CheckpointError, match=rf"lacks \d+ elements of {key} \[.*at \["):
            par.load(folder, model, mesh=made)
        for one, value in zip(model.parameters(), before, strict=True):
            assert torch.equal(one, value)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (os.environ["EVIL"],))


# Sets an attribute of a class that metadata may use.
ANOTHER_PATH = b"cpathlib\nPosixPath\n(N(S'hidden'\nI1\ndtb."


def test_nothing_of_a_checkpoint_is_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "was_run"
    monkeypatch.setenv("EVIL", str(mark))
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        path = par.save(folder, model, mesh=made).wait()
        if hvd.rank() == 0:
            (path / METADATA).write_bytes(pickle.dumps(Evil()))
        hvd.barrier()
        with pytest.raises(par.CheckpointError, match=r"names posix\.mkdir, which no metadata"):
            par.load(folder, model, mesh=made)
        if hvd.rank() == 0:
            (path / METADATA).write_bytes(ANOTHER_PATH)
        hvd.barrier()
        with pytest.raises(par.CheckpointError, match=r"it changes <class .*PosixPath'>"):
            par.load(folder, model, mesh=made)
        assert not hasattr(PosixPath, "hidden")
        hvd.barrier()
        if hvd.rank() == 0:
            shutil.rmtree(path)
            state = {"model": Whole().state_dict(), "extra": Evil()}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dcp.save(state, checkpoint_id=path, no_dist=True)
        hvd.barrier()
        with pytest.raises(par.CheckpointError, match="damaged; it has extra"):
            par.load(folder, model, mesh=made)
    assert not mark.exists()


def test_names_and_shapes_that_differ(folder: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        par.save(folder, model, mesh=made)
        with pytest.raises(par.CheckpointError) as info:
            par.load(folder, Whole(width=6), mesh=made)
        assert "first.weight has the shape (12, 8) in" in str(info.value)
        assert "and (12, 6) in the model" in str(info.value)
        other = nn.ModuleDict({"first": nn.Linear(8, 12), "third": nn.Linear(2, 2)})
        before = other["first"].weight.detach().clone()
        with pytest.raises(par.CheckpointError) as info:
            par.load(folder, other, mesh=made)
        assert "lacks third.weight, third.bias of the model" in str(info.value)
        assert "has mean, second.bias, second.weight, tied.weight, which" in str(info.value)
        assert torch.equal(other["first"].weight, before)
        par.load(folder, other, mesh=made, strict=False)
        assert torch.equal(other["first"].weight, par.whole_state_dict(model)["first.weight"])
        with pytest.raises(par.CheckpointError, match=r"no memory: call to_empty\(\)"):
            par.load(folder, Whole().to("meta"), mesh=made, strict=False)


def test_another_optimizer(folder: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        par.save(folder, model, stepped(model), made)
        with pytest.raises(par.CheckpointError, match=r"is of another optimizer: .* momentum"):
            par.load(folder, model, torch.optim.SGD(model.parameters(), momentum=0.9), made)
        with pytest.raises(ValueError, match=r"parameter 0 of the optimizer's group 0, of shape"):
            par.save(folder, model, torch.optim.SGD([nn.Parameter(torch.zeros(3))]), made)


def test_lists_in_the_state_are_of_one_parameter_each(folder: Path) -> None:
    with mesh(dp=hvd.size()) as made:
        model = nn.Linear(2, 2)
        optimizer = stepped(model)
        for parameter in model.parameters():
            optimizer.state[parameter]["seen"] = [1, 2]
        par.save(folder, model, optimizer, made)
        par.load(folder, model, optimizer, made)
        optimizer.state[model.weight]["seen"].append(3)
        assert optimizer.state[model.bias]["seen"] == [1, 2]


def test_names_of_parameters_are_the_optimizers_own(folder: Path) -> None:
    """torch 2.6 and newer store them in groups, and each pipeline stage has its own."""
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        optimizer = stepped(model)
        optimizer.param_groups[0]["param_names"] = ["of", "others"]
        path = par.save(folder, model, optimizer, made).wait()
        optimizer.param_groups[0]["param_names"] = ["own"]
        par.load(path, model, optimizer, made)
        assert optimizer.param_groups[0]["param_names"] == ["own"]
        del optimizer.param_groups[0]["param_names"]
        par.load(path, model, optimizer, made)
        assert "param_names" not in optimizer.param_groups[0]


def test_a_state_whose_division_is_unknown(folder: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        optimizer = stepped(model)
        optimizer.state[model.first.weight]["rows"] = torch.zeros(len(model.first.weight))
        with pytest.raises(ValueError, match=r"'rows' of first.weight has the shape .* not known"):
            par.save(folder, model, optimizer, made)


class OwnTensor(torch.Tensor):
    """A type that torch.load(weights_only=True) rejects."""


def test_what_can_not_be_loaded_is_not_saved(folder: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        with pytest.raises((TypeError, par.CheckpointError), match=r"extra\['path'\] is"):
            par.save(folder, model, mesh=made, extra={"path": Path("/")})
        own_kind = torch.zeros(2).as_subclass(OwnTensor)
        with pytest.raises((TypeError, par.CheckpointError), match=r"extra\['list'\]\[0\] is"):
            par.save(folder, model, mesh=made, extra={"list": [own_kind]})
        with pytest.raises(ValueError, match="keep=0"):
            par.save(folder, model, mesh=made, keep=0)
        assert not folder.exists() or not list(folder.iterdir())


def test_stages_that_have_the_same_names(folder: Path) -> None:
    with mesh(pp=hvd.size()) as made:
        stages = [nn.Sequential(nn.Linear(4, 4)) for _ in range(hvd.size())]
        pipe = par.Pipeline(stages, made.pp, microbatches=1)
        with pytest.raises(par.CheckpointError, match=r"stages 0 and 1 both have '0.weight'"):
            par.save(folder, pipe, mesh=made)
        with pytest.raises(par.CheckpointError, match=r"stages 0 and 1 both have '0.weight'"):
            par.save(folder, pipe.stages[made.pp.rank], mesh=made)

        def names(stage: int, name: str) -> str:
            return f"{stage}{name[1:]}"

        par.save(folder, pipe, mesh=made, names=names)
        alone = nn.Sequential(*(nn.Linear(4, 4) for _ in range(hvd.size())))
        par.load(folder, alone, mesh=made)
        own = pipe.stages[made.pp.rank][0]
        assert torch.equal(alone[made.pp.rank].weight, own.weight)
        with torch.no_grad():
            own.weight.zero_()
        par.load(folder, pipe, mesh=made, names=names)
        assert torch.equal(alone[made.pp.rank].weight, own.weight)


def test_a_disk_that_is_full_on_one_rank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        par.save(folder, model, mesh=made, extra={"number": 1})

        def full(*_: Any) -> Any:
            raise OSError(28, "No space left on device")

        if hvd.rank() == 1:
            monkeypatch.setattr(own_dcp, "write", full)
        handle = par.save(folder, model, mesh=made, asynchronous=True)
        kind, text = (
            (OSError, "No space left")
            if hvd.rank() == 1
            else (par.CheckpointError, r"failed on rank 1: OSError: .* No space left")
        )
        with pytest.raises(kind, match=text):
            handle.wait()
        hvd.barrier()
        assert par.load(folder, model, mesh=made) == {"number": 1}
        assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_memory_for_the_copies_of_one_rank(
    asynchronous: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: Any, **options: Any) -> Any:
        raise MemoryError("no memory left")

    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        with monkeypatch.context() as patched:
            if hvd.rank() == 1:
                patched.setattr(saving, "_own", none_left)
            kind, text = (
                (MemoryError, "no memory left")
                if hvd.rank() == 1
                else (par.CheckpointError, "failed on rank 1: MemoryError: no memory left")
            )
            with pytest.raises(kind, match=text):
                par.save(folder, model, mesh=made, asynchronous=asynchronous)
        hvd.barrier()
        assert not list(folder.iterdir())
        hvd.barrier()
        par.save(folder, model, mesh=made, asynchronous=asynchronous).wait()
        par.load(folder, model, mesh=made)


def test_one_rank_that_can_not_begin(folder: Path) -> None:
    with mesh(tp=hvd.size()) as made:
        model = divided(made.tp)
        strangers = [nn.Parameter(torch.zeros(3))]
        optimizer = torch.optim.SGD(strangers if hvd.rank() == 1 else model.parameters())
        with pytest.raises((ValueError, par.CheckpointError), match=r"group 0, of shape \(3,\)"):
            par.save(folder, model, optimizer, made)
        hvd.barrier()
        assert not list(folder.iterdir())
