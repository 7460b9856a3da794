"""Horovod's module for tf.data on ranks, which also exports the loaders of horoscale.data.

tf.data works unchanged. Give each rank its part: `dataset.shard(hvd.size(), hvd.rank())`.
"""

from horoscale.data import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
