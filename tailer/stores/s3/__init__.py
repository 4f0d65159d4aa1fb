"""S3, and stores with its protocol: the log with aiobotocore, ranges of data files with botocore on worker threads.

The clients come with the extra `s3`, and take a second to import; the functions here import them when they are called.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tailer.errors import ConfigError, how_to_install
from tailer.stores.s3.options import S3Options

if TYPE_CHECKING:
    from tailer.stores.s3.ranges import S3Ranges
    from tailer.stores.s3.store import S3Store

__all__ = ["S3Options", "check_client", "delta_rs_settings", "open_ranges", "open_store"]


def open_store(bucket: str, root: str, options: S3Options) -> "S3Store":
    """Make the store of the objects below `root` (empty: all) of a bucket; no I/O.

    Raises `ConfigError` where the extra `s3` is not installed.
    """
    try:
        from tailer.stores.s3.store import S3Store  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise _missing(bucket, error) from error
    return S3Store(bucket, root, options)


def open_ranges(bucket: str, key: str, options: S3Options) -> "S3Ranges":
    """Make the reader of parts of one object; no I/O. Raises `ConfigError` where the extra `s3` is not installed."""
    try:
        from tailer.stores.s3.ranges import S3Ranges  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise _missing(bucket, error) from error
    return S3Ranges(bucket, key, options)


def delta_rs_settings(bucket: str, options: S3Options) -> Mapping[str, str]:
    """Return `storage_options` for delta-rs, with keys in them. Blocking.

    Raises `StorageError` where there is no valid login, and `ConfigError` where the extra `s3` is not installed.
    """
    try:
        from tailer.stores.s3 import thread_clients  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise _missing(bucket, error) from error
    return thread_clients.delta_rs_settings(bucket, options)


def check_client(bucket: str) -> None:
    """Raise `ConfigError` where the extra `s3` is not installed. It is looked up, not imported."""
    if find_spec("aiobotocore") is None:
        raise _missing(bucket, ImportError("No module named 'aiobotocore'"))


def _missing(bucket: str, error: ImportError) -> ConfigError:
    remedy = f"{how_to_install('s3')} Executors of Spark need it, too."
    return ConfigError(f"s3://{bucket}", f"S3 cannot be reached: {error}", remedy)
