"""Published scaling figures, compared with the cost model's."""

from __future__ import annotations

from dataclasses import dataclass

from horoscale.scaling.extrapolate import data_parallel, tensor_parallel
from horoscale.torch.parallel.planning.machine import Link

_TENSORFLOW = "TensorFlow's benchmarks, May 2017 (docs_src/performance/benchmarks.md)"
_HOROVOD = "Horovod's README: 128 servers of 4 Pascal GPUs, 25 Gbit/s RoCE"
_MEGATRON = "Megatron-LM 1.0 (nv-adlr.github.io/MegatronLMV1): weak scaling in a DGX-2H"
_MEGATRON_CORE = "Megatron-LM's README, July 2024: 42 % beside 47 % of H100's peak, strong scaling"
_BATCH = 64
# Parameters as counted by torchvision; images per second of one P100 with a batch of 64
# (TensorFlow's figures).
_MODELS = {
    "Inception V3": (27.2e6, 142.0),
    "ResNet-152": (60.2e6, 91.8),
    "VGG-16": (138.4e6, 154.0),
}
# Width and layers of GPT-2 by the GPUs that share them, and the published efficiencies. The sizes
# are assumptions: those of arXiv:1909.08053, table 1, of 2.5, 4.2 and 8.3 billion parameters, where
# the source has 2.0, 4.2 and 8.7. A batch has 8 samples of 1,024 words. _REACHED is the measured
# performance of a single GPU, in operations per second.
_GPT2 = {2: (1920, 54, 0.907), 4: (2304, 64, 0.865), 8: (3072, 72, 0.796)}
_SAMPLES, _WORDS, _VOCABULARY, _REACHED = 8, 1024, 51_200, 62.4e12
# Assumptions: an allreduce's bandwidth with NVLink in a DGX-1, with PCIe, and with 25 Gbit/s.
_NVLINK, _PCIE, _ROCE = Link(20e-6, 30e9), Link(20e-6, 10e9), Link(10e-6, 25e9 / 8)
_NVSWITCH = Link(10e-6, 130e9)  # likewise with NVSwitch in a DGX-2H


@dataclass(frozen=True)
class Comparison:
    """A published figure, and the model's, between a lower and an upper bound."""

    what: str
    published: float
    lowest: float
    highest: float
    source: str


def comparisons() -> list[Comparison]:
    """Return all comparisons.

    Efficiencies of data parallelism are given without and with full overlap of averages and the
    backward pass, because the papers don't state their overlap.
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
    return [*found, *_layers_divided(), _stages()]


def _layers_divided() -> list[Comparison]:
    """Compare tensor parallelism with recomputation of all activations."""
    found = []
    for ranks, (width, layers, published) in _GPT2.items():
        # Narayanan et al. 2021, arXiv:2104.04473, equation 3: a quarter is recomputation.
        operations = 96.0 * _SAMPLES * _WORDS * layers * width**2
        operations *= 1 + _WORDS / (6 * width) + _VOCABULARY / (16 * layers * width)
        compute = 3 / 4 * operations / ranks / _REACHED
        nbytes = 2 * _SAMPLES * _WORDS * width
        said = tensor_parallel(ranks, compute, layers, nbytes, _NVSWITCH, recompute=True)
        what = f"GPT-2 of {layers} layers, tensor parallel on {ranks} GPUs: efficiency"
        efficiency = said.parts.efficiency
        found.append(Comparison(what, published, efficiency, efficiency, _MEGATRON))
    return found


def _stages() -> Comparison:
    """Compare strong scaling of GPT-3: with more ranks, each pipeline has fewer microbatches.

    96 GPUs form a pipeline of 12 stages of 8 GPUs each, whose 96 layers are divided into 1 to 8
    chunks per stage. Averages of gradients are assumed to be hidden.
    """
    stages, samples = 12, 1152

    def busy(pipelines: int, chunks: int) -> float:
        """Return 1 - bubble (arXiv:2104.04473, section 2.2)."""
        microbatches = samples // pipelines
        return microbatches / (microbatches + (stages - 1) / chunks)

    lowest, highest = (busy(4608 // 96, chunks) / busy(1, chunks) for chunks in (1, 8))
    what = "GPT-3 on 4,608 GPUs beside 96: throughput of a GPU"
    return Comparison(what, 0.42 / 0.47, lowest, highest, _MEGATRON_CORE)
