"""Horovod's place for tf.data on ranks; the data loaders of horoscale.data are here as well.

tf.data works unchanged: give each rank its part, `dataset.shard(hvd.size(), hvd.rank())`.
"""

from horoscale.data import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
