"""S3, and stores with its protocol: the log with aiobotocore, ranges of data files with botocore on worker threads.

The clients come with the extra `s3`, and take a second to import; the functions here import them when they are called.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailer.errors import missing_client
from tailer.stores.s3.options import S3Options

if TYPE_CHECKING:
    from tailer.stores.s3.ranges import S3Ranges
    from tailer.stores.s3.store import S3Store

__all__ = ["S3Options", "delta_rs_settings", "open_ranges", "open_store"]


def open_store(bucket: str, root: str, options: S3Options) -> "S3Store":
    """Make the store of the objects below `root` (empty: all) of a bucket; no I/O.

    Raises `ConfigError` where the extra `s3` is not installed.
    """
    try:
        from tailer.stores.s3.store import S3Store  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_client("s3", f"s3://{bucket}", error) from error
    return S3Store(bucket, root, options)


def open_ranges(bucket: str, key: str, options: S3Options) -> "S3Ranges":
    """Make the reader of parts of one object; no I/O. Raises `ConfigError` where the extra `s3` is not installed."""
    try:
        from tailer.stores.s3.ranges import S3Ranges  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_client("s3", f"s3://{bucket}", error) from error
    return S3Ranges(bucket, key, options)


def delta_rs_settings(bucket: str, options: S3Options) -> Mapping[str, str]:
    """Return `storage_options` for delta-rs, with keys in them. Blocking.

    Raises `StorageError` where there is no valid login, and `ConfigError` where the extra `s3` is not installed.
    """
    try:
        from tailer.stores.s3 import thread_clients  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_client("s3", f"s3://{bucket}", error) from error
    return thread_clients.delta_rs_settings(bucket, options)
