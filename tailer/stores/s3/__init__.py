"""S3, and stores with its protocol: the log with aiobotocore, ranges of data files with botocore on worker threads.

The clients come with the extra `s3`, and take a second to import; the functions here import them when they are called.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tailer.errors import missing_client
from tailer.stores.s3.options import S3Options

if TYPE_CHECKING:
    from tailer.stores.s3.bucket import S3Bucket

__all__ = ["S3Options", "delta_rs_settings", "open_bucket"]

_SCHEME: Final = "s3://"


def open_bucket(root: str, options: S3Options) -> "S3Bucket":
    """Make the client of a bucket, given by its location; no I/O.

    Raises `ConfigError` where the extra `s3` is not installed.
    """
    try:
        from tailer.stores.s3.bucket import S3Bucket  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_client("s3", root, error) from error
    return S3Bucket(root.removeprefix(_SCHEME), options)


def delta_rs_settings(root: str, options: S3Options) -> Mapping[str, str]:
    """Return `storage_options` for delta-rs at a bucket, given by its location, with keys in them. Blocking.

    Raises `StorageError` where there is no valid login, and `ConfigError` where the extra `s3` is not installed.
    """
    try:
        from tailer.stores.s3 import thread_clients  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_client("s3", root, error) from error
    return thread_clients.delta_rs_settings(root.removeprefix(_SCHEME), options)
