"""Storage for estimators' data and models: a folder of any file system that fsspec supports."""

from __future__ import annotations

import os
import posixpath
import uuid
from collections.abc import Mapping
from typing import Any


class StoreError(ValueError):
    """A store is unusable. The message is for the user."""


class Store:
    """A folder that all machines of a Spark cluster can access, by path or URL.

    A path is for a single machine, or for a file system that all of them mount. URLs such as
    `s3://bucket/runs` need the fsspec package for their scheme. The folder of a run is
    `<prefix>/runs/<run id>`.
    """

    def __init__(
        self, prefix_path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> None:
        """Open the file system and check that the folder is writable.

        `storage_options` are fsspec's, such as credentials. They are sent to every process that
        receives the store.

        Raises StoreError if there is no such file system, or the folder can't be written.
        """
        self.prefix_path = os.fspath(prefix_path)
        self.storage_options = dict(storage_options or {})
        self._filesystem, self._root = self._resolve()
        self._try_to_write()

    @classmethod
    def create(
        cls, prefix_path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> Store:
        """Return Store(prefix_path, storage_options)."""
        return cls(prefix_path, storage_options)

    @property
    def filesystem(self) -> Any:
        """The fsspec file system."""
        return self._filesystem

    def get_run_path(self, run_id: str) -> str:
        """Return the folder of a run, on the file system."""
        return posixpath.join(self._root, "runs", run_id)

    def get_train_data_path(self, run_id: str) -> str:
        """Return the folder of a run's training data."""
        return posixpath.join(self.get_run_path(run_id), "train")

    def get_val_data_path(self, run_id: str) -> str:
        """Return the folder of a run's validation data."""
        return posixpath.join(self.get_run_path(run_id), "validation")

    def get_checkpoint_path(self, run_id: str) -> str:
        """Return the file with the model after the last complete epoch."""
        return posixpath.join(self.get_run_path(run_id), "checkpoint")

    def exists(self, path: str) -> bool:
        """Return whether there is a file or a folder."""
        return bool(self._filesystem.exists(path))

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises StoreError if this machine does not see it."""
        try:
            return bytes(self._filesystem.cat_file(path))
        except FileNotFoundError:
            raise StoreError(f"{path} is not there: {self._advice()}") from None

    def write(self, path: str, content: bytes) -> None:
        """Write a file, atomically if the file system supports it."""
        self._filesystem.makedirs(posixpath.dirname(path), exist_ok=True)
        new = f"{path}.{uuid.uuid4().hex[:8]}"
        self._filesystem.pipe_file(new, content)
        self._filesystem.mv(new, path)

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""
        if self.exists(path):
            self._filesystem.rm(path, recursive=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.prefix_path, self.storage_options)

    def __repr__(self) -> str:
        return f"Store({self.prefix_path!r})"

    def _resolve(self) -> tuple[Any, str]:
        try:
            import fsspec
        except ImportError as error:
            raise StoreError(
                f"a store needs fsspec ({error}): pip install 'horoscale[spark]'"
            ) from error
        try:
            filesystem, root = fsspec.core.url_to_fs(self.prefix_path, **self.storage_options)
        except (ImportError, ValueError) as error:
            raise StoreError(f"store {self.prefix_path!r}: {error}") from error
        return filesystem, root.rstrip("/")

    def _try_to_write(self) -> None:
        trial = posixpath.join(self._root, f".trial-{uuid.uuid4().hex[:8]}")
        try:
            self._filesystem.makedirs(self._root, exist_ok=True)
            self._filesystem.pipe_file(trial, b"horoscale")
            self._filesystem.rm_file(trial)
        except Exception as error:  # file systems have different exceptions
            said = str(error) or type(error).__name__
            raise StoreError(
                f"store {self.prefix_path!r} can't be written: {said}; name a folder that this "
                "user may create files in"
            ) from error

    def _advice(self) -> str:
        return (
            f"the store {self.prefix_path!r} has to be on a file system that all machines see, not "
            "on one machine's own disk"
        )


def _reopen(prefix_path: str, storage_options: Mapping[str, Any]) -> Store:
    """Return a store from another process, without checking that it is writable here."""
    store = Store.__new__(Store)
    store.prefix_path = prefix_path
    store.storage_options = dict(storage_options)
    store._filesystem, store._root = store._resolve()
    return store
