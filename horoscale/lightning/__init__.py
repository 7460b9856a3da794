"""horoscale for Lightning: Trainer(strategy="horoscale"), and the same for Fabric.

    import horoscale.lightning

    trainer = lightning.Trainer(strategy="horoscale", accelerator="cpu")

The ranks are those of the launcher that started the program: horoscalerun, mpirun, srun or
torchrun. Without a launcher, the Trainer starts `devices` ranks itself. See docs/lightning.md.
"""

try:
    from lightning.fabric import strategies as _fabric
    from lightning.pytorch import strategies as _trainer
except ImportError as error:
    raise ImportError(
        f"horoscale.lightning needs Lightning 2.5 or newer ({error}): pip install lightning"
    ) from error
from horoscale.lightning.callbacks import ElasticCheckpoints, RuntimeMetrics
from horoscale.lightning.environment import HoroscaleEnvironment
from horoscale.lightning.fabric import HoroscaleFabricStrategy
from horoscale.lightning.strategy import HoroscaleStrategy

__all__ = [
    "ElasticCheckpoints",
    "HoroscaleEnvironment",
    "HoroscaleFabricStrategy",
    "HoroscaleStrategy",
    "RuntimeMetrics",
]

_NAME = "horoscale"
for _registry, _strategy in (
    (_trainer.StrategyRegistry, HoroscaleStrategy),
    (_fabric.STRATEGY_REGISTRY, HoroscaleFabricStrategy),
):
    if _NAME not in _registry:
        _registry.register(_NAME, _strategy, description="Ranks of a horoscale job")
