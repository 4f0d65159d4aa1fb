"""obstore's clients: one for each process, bucket and options, shared by all threads and event loops.

The client finds and renews credentials by itself. One whose login is refused is replaced by a new one, which looks for
credentials from the start. Retries are bounded, so that a server that stalls becomes an error within a minute.
"""

import os
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from obstore.store import AzureStore, GCSStore

from tailer.stores.cloud import AzureOptions, CloudOptions, GcsOptions
from tailer.stores.location import split_location

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

__all__ = ["SharedClient", "find_client"]

_PUBLIC: Final = "dfs.core.windows.net"
_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_READ_TIMEOUT: Final = timedelta(seconds=15)
# Of a whole request with its body, which has at most a piece of a file, or a commit file; and of an upload. The time
# until the answer to an upload includes that of sending the file, so there is no other limit.
_TIMEOUT: Final = timedelta(minutes=2)
_UPLOAD_TIMEOUT: Final = timedelta(minutes=30)
_RETRY: "Final[RetryConfig]" = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}


@dataclass(eq=False)
class SharedClient:
    """A client of one bucket. `has_answered`: whether a request of it was ever answered as asked."""

    store: GCSStore | AzureStore
    key: "Key"
    has_answered: bool = False

    def retire(self) -> None:
        """Let the next request make a new client: this one's credentials are refused."""
        with _MAKING:
            if _CLIENTS.get(self.key) is self:
                del _CLIENTS[self.key]


# The process, because a child must not use the connections of its parent; the bucket; its options; whether to upload.
Key = tuple[int, str, CloudOptions, bool]
_CLIENTS: Final[dict[Key, SharedClient]] = {}
_MAKING: Final = threading.Lock()


def find_client(bucket: str, options: CloudOptions, for_uploads: bool = False) -> SharedClient:
    """Return this process's client; for worker threads, because files with keys may be read.

    `for_uploads`: for requests with large bodies, which take long.

    Raises obstore's errors, `OSError`, `ValueError` and `ConfigError` where none can be made.
    """
    key = os.getpid(), bucket, options, for_uploads
    with _MAKING:
        if key not in _CLIENTS:
            _CLIENTS[key] = SharedClient(_made(bucket, options, for_uploads), key)
        return _CLIENTS[key]


def _made(bucket: str, options: CloudOptions, for_uploads: bool) -> GCSStore | AzureStore:
    location = split_location(bucket)
    if location is None:
        raise ValueError(bucket)
    http: ClientConfig = {
        # The endpoint says whether it is HTTP; by default it is not.
        "allow_http": True,
        "connect_timeout": _CONNECT_TIMEOUT,
        "timeout": _UPLOAD_TIMEOUT if for_uploads else _TIMEOUT,
        "user_agent": "lake-tailer",
    }
    if not for_uploads:
        http["read_timeout"] = _READ_TIMEOUT
    config: dict[str, Any] = {"skip_signature": True} if options.anonymous else {}
    if isinstance(options, AzureOptions):
        container, _, host = location.bucket.partition("@")
        account, _, domain = host.partition(".")
        config["account_name"] = account
        if options.endpoint is not None:
            config["endpoint"] = options.endpoint
        elif domain != _PUBLIC:
            config["endpoint"] = f"https://{account}.{domain.replace('dfs', 'blob', 1)}"
        if options.credential_type is not None:
            config["credential_type"] = options.credential_type
        return AzureStore(container, config=config, client_options=http, retry_config=_RETRY)  # type: ignore[arg-type]
    if options.endpoint is not None:
        config["base_url"] = options.endpoint
    if options.service_account is not None:
        config["service_account"] = options.service_account
    store = GCSStore(location.bucket, config=config, client_options=http, retry_config=_RETRY)  # type: ignore[arg-type]
    # The environment may have another one.
    GcsOptions(endpoint=store.config.get("base_url"))
    return store
