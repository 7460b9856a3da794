"""Published scaling figures, and what the cost model says of them."""

from __future__ import annotations

from dataclasses import dataclass

from horoscale.scaling.extrapolate import data_parallel
from horoscale.torch.parallel.planning.machine import Link

_TENSORFLOW = "TensorFlow's benchmarks, May 2017 (docs_src/performance/benchmarks.md)"
_HOROVOD = "Horovod's README: 128 servers of 4 Pascal GPUs, 25 Gbit/s RoCE"
_BATCH = 64
# Parameters as torchvision counts them; images a second of one P100 with 64 of them (TensorFlow's).
_MODELS = {
    "Inception V3": (27.2e6, 142.0),
    "ResNet-152": (60.2e6, 91.8),
    "VGG-16": (138.4e6, 154.0),
}
# Assumed: what an allreduce gets of NVLink in a DGX-1, of PCIe, and of 25 Gbit/s.
_NVLINK, _PCIE, _ROCE = Link(20e-6, 30e9), Link(20e-6, 10e9), Link(10e-6, 25e9 / 8)


@dataclass(frozen=True)
class Comparison:
    """A published figure, and what the model says, between a lowest and a highest share."""

    what: str
    published: float
    lowest: float
    highest: float
    source: str


def comparisons() -> list[Comparison]:
    """Return all of them.

    Efficiencies of data parallelism are told without and with full overlap of averages and the
    backward pass, because the papers don't say what theirs was.
    """
    found = []
    for name, published, ranks, inside, per_host, source in (
        ("Inception V3", 1131 / 8 / 142, 8, _NVLINK, 8, _TENSORFLOW),
        ("ResNet-152", 716 / 8 / 91.8, 8, _NVLINK, 8, _TENSORFLOW),
        ("VGG-16", 1081 / 8 / 154, 8, _NVLINK, 8, _TENSORFLOW),
        ("Inception V3", 0.90, 512, _PCIE, 4, _HOROVOD),
        ("VGG-16", 0.68, 512, _PCIE, 4, _HOROVOD),
    ):
        parameters, images = _MODELS[name]
        lowest, highest = (
            data_parallel(
                ranks, _BATCH / images, 4 * parameters, inside, _ROCE, per_host, overlap
            ).parts.efficiency
            for overlap in (0.0, 1.0)
        )
        what = f"{name}, data parallel on {ranks} GPUs: efficiency"
        found.append(Comparison(what, published, lowest, highest, source))
    return found
