"""horoscale on Ray: ranks as actors of a cluster.

    from horoscale.ray import RayExecutor

    executor = RayExecutor(num_workers=4, cpus_per_worker=2)
    executor.start()
    accuracies = executor.run(train)  # of ranks 0, 1, 2 and 3
    executor.shutdown()

With `min_workers` the job is elastic: its ranks follow the cluster's nodes. `horoscale.ray.train`
is a backend of Ray Train.
"""

try:
    from ray import init as _init  # noqa: F401 (Ray has one, a folder named ray has none)
except ImportError as error:
    raise ImportError(
        f"horoscale.ray needs Ray 2.10 or newer ({error}): pip install 'horoscale[ray]'"
    ) from error
from horoscale.ray.executor import RayExecutor
from horoscale.ray.settings import RayError, RaySettings, Shape

__all__ = ["RayError", "RayExecutor", "RaySettings", "Shape"]
