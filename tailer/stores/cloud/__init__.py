"""Google Cloud Storage and Azure: the log and ranges of data files with obstore, whose clients all threads share.

obstore comes with the extras `gcs` and `azure`; the functions here import it when they are called.
"""

from typing import TYPE_CHECKING

from tailer.errors import missing_client
from tailer.stores.cloud.delta_rs import check_account, delta_rs_settings
from tailer.stores.cloud.options import CREDENTIAL_TYPES, AzureOptions, CloudOptions, GcsOptions

if TYPE_CHECKING:
    from tailer.stores.cloud.bucket import CloudBucket

__all__ = [
    "CREDENTIAL_TYPES",
    "AzureOptions",
    "CloudOptions",
    "GcsOptions",
    "check_account",
    "delta_rs_settings",
    "open_bucket",
]


def open_bucket(root: str, options: CloudOptions) -> "CloudBucket":
    """Make the client of a bucket, given by its location; no I/O.

    Raises `ConfigError` where its extra is not installed.
    """
    try:
        from tailer.stores.cloud.bucket import CloudBucket  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_client("gcs" if isinstance(options, GcsOptions) else "azure", root, error) from error
    return CloudBucket(root, options)
