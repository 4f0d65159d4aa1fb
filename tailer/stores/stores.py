"""The stores of a configuration: each location belongs to the one with the longest prefix of it.

A value without secrets, so that it may be sent to executors. Without a configuration, every bucket is reached as AWS's
own tools would.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tailer.errors import ConfigError
from tailer.stores.local import LocalStore
from tailer.stores.location import bucket_and_key, is_local, lies_in
from tailer.stores.port import ObjectStore
from tailer.stores.ranges import ObjectRanges
from tailer.stores.s3 import S3Options, delta_rs_settings, open_ranges, open_store
from tailer.stores.uploads import UploadStore

__all__ = ["Stores"]


@dataclass(frozen=True, slots=True)
class Stores:
    """Options by prefix, such as `s3://lake/sales`, as `parse_location` returns it."""

    by_prefix: tuple[tuple[str, S3Options], ...] = ()

    def options(self, location: str) -> S3Options:
        """Return the options of the store that `location` belongs to."""
        fitting = [each for each in self.by_prefix if lies_in(location, each[0])]
        return max(fitting, key=lambda each: len(each[0]))[1] if fitting else S3Options()

    def open(self, location: str) -> ObjectStore:
        """Open the store whose root is `location`; no I/O. Raises `ConfigError` where its client is not installed."""
        if is_local(location):
            return LocalStore(Path(location))
        return open_store(*_split(location), self.options(location))

    def open_uploads(self, location: str) -> UploadStore:
        """Open the store whose root is `location`, which is not local, to write to; no I/O. Raises as `open` does."""
        store = self.open(location)
        if not isinstance(store, UploadStore):
            raise ConfigError(location, "is in a store that sinks cannot write to", "Give a local path, or s3://.")
        return store

    def open_parents(self, location: str) -> list[UploadStore]:
        """Open the folders around `location`, the nearest first, up to its bucket; raises as `open_uploads` does."""
        bucket, key = _split(location)
        parts = key.split("/")
        folders = ["/".join(parts[:length]) for length in range(len(parts) - 1, -1, -1)] if key else []
        return [self.open_uploads(f"s3://{bucket}/{folder}".rstrip("/")) for folder in folders]

    def delta_rs_settings(self, location: str) -> Mapping[str, str]:
        """Return `storage_options` for delta-rs at `location`, which is not local, with keys in them. Blocking.

        Raises `StorageError` where there is no valid login, and `ConfigError` as `open` does.
        """
        return delta_rs_settings(_split(location)[0], self.options(location))

    def ranges(self, uri: str) -> ObjectRanges:
        """Return the bytes of the object at `uri`, which is not local; no I/O. Raises as `open` does."""
        bucket, key = _split(uri)
        return open_ranges(bucket, key, self.options(f"s3://{bucket}/{key}"))


def _split(location: str) -> tuple[str, str]:
    found = bucket_and_key(location)
    if found is None:
        raise ConfigError(location, "is in no store that can be read", "Give a local path, or s3://BUCKET/KEY.")
    return found
