"""The stores of a configuration: each location belongs to the one with the longest prefix of it.

A value without secrets, so that it may be sent to executors. Without a configuration, every bucket is reached as its
cloud's own tools would.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from tailer.errors import ConfigError, missing_client
from tailer.stores import cloud, s3
from tailer.stores.cloud import AzureOptions, GcsOptions
from tailer.stores.glue import GlueOptions, is_named
from tailer.stores.local import LocalStore
from tailer.stores.location import AZURE, GCS, S3, ObjectLocation, is_local, lies_in, split_location
from tailer.stores.port import ObjectStore
from tailer.stores.ranges import ObjectRanges
from tailer.stores.s3 import S3Options
from tailer.stores.uploads import UploadStore

if TYPE_CHECKING:
    from tailer.stores.bucket.port import Bucket

__all__ = ["KINDS", "StoreOptions", "Stores", "check_client"]

StoreOptions = S3Options | GcsOptions | AzureOptions


class Kind(NamedTuple):
    """A kind of object stores. `library`: its client, which comes with `extra`.

    `open_bucket` and `delta_rs_settings` take the location of a bucket and options.
    """

    options: type[StoreOptions]
    library: str
    extra: str
    open_bucket: Callable[[str, Any], "Bucket"]
    delta_rs_settings: Callable[[str, Any], Mapping[str, str]]


# By the scheme of their locations.
KINDS: Final = {
    S3: Kind(S3Options, "aiobotocore", "s3", s3.open_bucket, s3.delta_rs_settings),
    GCS: Kind(GcsOptions, "obstore", "gcs", cloud.open_bucket, cloud.delta_rs_settings),
    AZURE: Kind(AzureOptions, "obstore", "azure", cloud.open_bucket, cloud.delta_rs_settings),
}


@dataclass(frozen=True, slots=True)
class Stores:
    """Options by prefix, such as `s3://lake/sales`, as `parse_location` returns it, or a database of Glue.

    `catalogs`: the options of catalogs by name, which the format whose tables they name understands.
    """

    by_prefix: tuple[tuple[str, StoreOptions | GlueOptions], ...] = ()
    catalogs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False, hash=False)

    def options(self, location: str) -> StoreOptions:
        kind = KINDS[_split(location).scheme].options
        stores = [(prefix, given) for prefix, given in self.by_prefix if not isinstance(given, GlueOptions)]
        fitting = [store for store in stores if lies_in(location, store[0])]
        return max(fitting, key=lambda store: len(store[0]))[1] if fitting else kind()

    def glue_options(self, name: str) -> GlueOptions:
        """Return how to reach Glue for the table with this name, or for a database."""
        fitting = (
            given for prefix, given in self.by_prefix if lies_in(name, prefix) and isinstance(given, GlueOptions)
        )
        return next(fitting, GlueOptions())

    def open(self, location: str) -> ObjectStore:
        """Open the store whose root is `location`; no I/O. Raises `ConfigError` where its client is not installed."""
        if is_local(location):
            return LocalStore(Path(location))
        return self.open_uploads(location)

    def open_uploads(self, location: str) -> UploadStore:
        """Open the store whose root is `location`, which is not local, to write to; no I/O. Raises as `open` does."""
        from tailer.stores.bucket.store import BucketStore  # noqa: PLC0415 - only where a location is not local

        return BucketStore(self._open_bucket(location), _split(location).key)

    def open_parents(self, location: str) -> list[UploadStore]:
        """Open the folders around `location`, the nearest first, up to its bucket; raises as `open_uploads` does."""
        parts_of_store = _split(location)
        parts = parts_of_store.key.split("/")
        folders = ["/".join(parts[:length]) for length in range(len(parts) - 1, -1, -1)] if parts_of_store.key else []
        return [self.open_uploads(f"{parts_of_store.root}/{folder}".rstrip("/")) for folder in folders]

    def check_for_delta_rs(self, location: str) -> None:
        """Raise `ConfigError` for a location, which is not local, that delta-rs would take for another one.

        It takes a location as a URL, so a few characters would lead to another folder.
        """
        key = _split(location).key
        if unquote(urlsplit(f"{S3}://bucket/{key}").path) != f"/{key}" or "//" in key:
            reason = "is a folder that the library which writes tables would read as another one"
            raise ConfigError(location, reason, "Choose a path without percent, question and number signs.")
        cloud.check_account(location)

    def delta_rs_settings(self, location: str) -> Mapping[str, str]:
        """Return `storage_options` for delta-rs at `location`, which is not local, with keys in them. Blocking.

        Raises `StorageError` where there is no valid login, and `ConfigError` as `open` does.
        """
        place = _split(location)
        return KINDS[place.scheme].delta_rs_settings(place.root, self.options(location))

    def ranges(self, uri: str) -> ObjectRanges:
        """Return the bytes of the object at `uri`, which is not local; no I/O. Raises as `open` does."""
        from tailer.stores.bucket.store import BucketRanges  # noqa: PLC0415 - as above

        place = _split(uri)
        return BucketRanges(self._open_bucket(f"{place.root}/{place.key}"), place.key)

    def _open_bucket(self, location: str) -> "Bucket":
        place = _split(location)
        return KINDS[place.scheme].open_bucket(place.root, self.options(location))


def check_client(location: str) -> str:
    """Return `location`, or the name of a table in Glue, whose client is that of S3.

    Raises `ConfigError` where the client of its store is not installed; it is not imported.
    """
    if not is_local(location):
        kind = KINDS[S3] if is_named(location) else KINDS[_split(location).scheme]
        if find_spec(kind.library) is None:
            root = location if is_named(location) else _split(location).root
            raise missing_client(kind.extra, root, ImportError(f"No module named {kind.library!r}"))
    return location


def _split(location: str) -> ObjectLocation:
    location_parts = split_location(location)
    if location_parts is None:
        remedy = "Give a local path, or a folder in S3, Google Cloud Storage or Azure."
        raise ConfigError(location, "is in no store that can be read", remedy)
    return location_parts
