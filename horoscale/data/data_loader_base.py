"""BaseDataLoader, and the mixin that lets a thread iterate over the data ahead of the consumer.

class Loader(BaseDataLoader):
    def __len__(self): ...
    def _iterate(self): ...  # yields batches

class AsyncLoader(AsyncDataLoaderMixin, Loader):
    pass

for batch in AsyncLoader(async_loader_queue_size=8): ...
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from horoscale.data.prefetch import Prefetch

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]


class BaseDataLoader:
    """An iterable over batches. Subclasses implement __len__() and _iterate()."""

    def __len__(self) -> int:
        """Return the number of batches in one pass over the data."""
        raise NotImplementedError(f"{type(self).__name__} has to implement __len__()")

    def _iterate(self) -> Iterator[Any]:
        """Yield the batches of one pass over the data."""
        raise NotImplementedError(f"{type(self).__name__} has to implement _iterate()")

    def _process_batch(self, batch: Any) -> Any:
        """Return the value that the consumer gets for a batch. A trainer may override it."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        """Start a pass over the data."""
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Runs _iterate() in a background thread. It must precede the loader among the base classes.

    Each pass over the data has its own thread and queue. The thread ends with the pass: at the end
    of the data, when the consumer leaves its loop, or with close_async_loader(). The consumer gets
    an exception of _iterate() after the preceding batches. _process_batch() runs in the consumer's
    thread.
    """

    if TYPE_CHECKING:  # the loader's method

        def _iterate(self) -> Iterator[Any]: ...

        def _process_batch(self, batch: Any) -> Any: ...

    def __init__(self, async_loader_queue_size: int = 64, *args: Any, **kwargs: Any) -> None:
        """Pass all other arguments on to the loader.

        Args:
            async_loader_queue_size: the maximum number of prefetched batches. 0: use no thread, and
                iterate in the consumer.
            args: positional arguments of the loader.
            kwargs: its keyword arguments.
        """
        self.async_loader_queue_size = async_loader_queue_size
        self._passes: weakref.WeakSet[Prefetch] = weakref.WeakSet()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """End the background threads, and wait for them.

        A pass that is in progress raises RuntimeError when it continues. A new pass may be started
        afterwards.
        """
        for prefetch in list(self._passes):
            prefetch.close()

    def __iter__(self) -> Iterator[Any]:
        """Start a pass over the data, in a new thread."""
        if self.async_loader_queue_size <= 0:
            for batch in self._iterate():
                yield self._process_batch(batch)
            return
        prefetch = Prefetch(self._iterate, self.async_loader_queue_size)
        self._passes.add(prefetch)
        try:
            for batch in prefetch:
                yield self._process_batch(batch)
        finally:
            prefetch.close()
