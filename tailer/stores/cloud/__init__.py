"""Google Cloud Storage and Azure: the log and ranges of data files with obstore, whose clients all threads share.

obstore comes with the extra `cloud`; the functions here import it when they are called.
"""

from typing import TYPE_CHECKING

from tailer.errors import missing_client
from tailer.stores.cloud.delta_rs import check_account, delta_rs_settings
from tailer.stores.cloud.options import CREDENTIAL_TYPES, AzureOptions, CloudOptions, GcsOptions

if TYPE_CHECKING:
    from tailer.stores.cloud.ranges import CloudRanges
    from tailer.stores.cloud.store import CloudStore

__all__ = [
    "CREDENTIAL_TYPES",
    "AzureOptions",
    "CloudOptions",
    "GcsOptions",
    "check_account",
    "delta_rs_settings",
    "open_ranges",
    "open_store",
]


def open_store(bucket: str, root: str, options: CloudOptions) -> "CloudStore":
    """Make the store of the objects below `root` (empty: all) of a bucket, given by its location; no I/O.

    Raises `ConfigError` where the extra `cloud` is not installed.
    """
    try:
        from tailer.stores.cloud.store import CloudStore  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_client("cloud", bucket, error) from error
    return CloudStore(bucket, root, options)


def open_ranges(bucket: str, key: str, options: CloudOptions) -> "CloudRanges":
    """Make the reader of parts of one object; no I/O. Raises `ConfigError` as `open_store`."""
    try:
        from tailer.stores.cloud.ranges import CloudRanges  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_client("cloud", bucket, error) from error
    return CloudRanges(bucket, key, options)
