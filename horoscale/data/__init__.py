"""Data loaders that prepare batches in the background: Horovod's horovod.data."""

from horoscale.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
