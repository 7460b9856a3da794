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
        """Return what the consumer gets for a batch; a trainer may override it."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass over the data."""
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Runs _iterate() in a background thread. It comes before the loader among the base classes.

    Each pass over the data has a thread and a queue of its own. The thread ends with the pass: at
    the end of the data, when the consumer leaves its loop, or with close_async_loader(). What
    _iterate() raises is raised in the consumer, after the batches that came before it.
    _process_batch() runs in the consumer's thread.
    """

    if TYPE_CHECKING:  # the loader's

        def _iterate(self) -> Iterator[Any]: ...

        def _process_batch(self, batch: Any) -> Any: ...

    def __init__(self, async_loader_queue_size: int = 64, *args: Any, **kwargs: Any) -> None:
        """Pass all other arguments on to the loader.

        Args:
            async_loader_queue_size: how many batches may be ready before they are asked for; 0: no
                thread, the consumer iterates itself.
            args: positional arguments of the loader.
            kwargs: its keyword arguments.
        """
        self.async_loader_queue_size = async_loader_queue_size
        self._passes: weakref.WeakSet[Prefetch] = weakref.WeakSet()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """End the background threads, and wait until they have ended.

        A pass that is under way raises RuntimeError if it would continue. A new pass may begin
        afterwards.
        """
        for prefetch in list(self._passes):
            prefetch.close()

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass over the data, in a thread of its own."""
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
