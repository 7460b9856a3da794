"""Conversions between meshes and torch.distributed's DeviceMesh."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.torch_libraries import MARKS, default_group

import horoscale.torch as hvd
import horoscale.torch.parallel as par

pytestmark = MARKS


@pytest.mark.parametrize("order", ["tp-dp", "dp-tp"])
def test_to_a_device_mesh_and_back(order: str) -> None:
    with default_group("horoscale"):
        mesh = par.init(tp=2, order=order)
        device_mesh = mesh.to_device_mesh()
        for name in device_mesh.mesh_dim_names:
            axis = mesh[name]
            assert device_mesh[name].mesh.tolist() == list(axis.ranks)
            assert device_mesh.get_local_rank(name) == axis.rank
            own = torch.tensor([1 << hvd.rank()])
            dist.all_reduce(own, group=device_mesh.get_group(name))
            expected = hvd.allreduce(
                torch.tensor([1 << hvd.rank()]), op=hvd.Sum, process_set=axis.set
            )
            assert own == expected
        mesh.close()
        again = par.Mesh.from_device_mesh(device_mesh)
        kept = {name: size for name, size in again.sizes.items() if size > 1}
        assert kept == {name: size for name, size in mesh.sizes.items() if size > 1}
        assert [again[name].ranks for name in kept] == [
            tuple(device_mesh[name].mesh.tolist()) for name in kept
        ]
        again.close()


def test_a_device_mesh_makes_its_own_default_group() -> None:
    mesh = par.init()
    device_mesh = mesh.to_device_mesh()
    assert device_mesh.mesh_dim_names == ("dp",)
    assert dist.get_backend() == "horoscale"
    dist.destroy_process_group()
    mesh.close()


def test_other_device_meshes_are_refused() -> None:
    from torch.distributed.device_mesh import DeviceMesh

    with default_group("horoscale"):
        backwards = list(range(hvd.size()))[::-1]
        with pytest.raises(ValueError, match="needs mesh_dim_names"):
            par.Mesh.from_device_mesh(DeviceMesh("cpu", backwards))
        with pytest.raises(ValueError, match="in order"):
            par.Mesh.from_device_mesh(DeviceMesh("cpu", backwards, mesh_dim_names=("tp",)))
