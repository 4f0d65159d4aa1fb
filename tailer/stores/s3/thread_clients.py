"""The S3 client of worker threads: one of each process and `S3Options`. It may be used by all threads at once.

delta-rs has a client of its own, which gets the login, region and endpoint that ours found. Its settings hold keys, so
they are made anew for each use, and are in no text. Keys that expire are renewed by botocore before they do.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tailer.errors import StorageAccessRefused
from tailer.stores.s3 import S3Options
from tailer.stores.s3.errors import Place, translate
from tailer.stores.s3.sessions import client_arguments, credentials_name, sync_session
from tailer.stores.s3.templates import ThreadTemplates

__all__ = ["ThreadClient", "thread_client"]

_TOKEN: Final = "AWS_SESSION_TOKEN"


@dataclass(frozen=True, eq=False)
class ThreadClient:
    """A client for threads. `credentials`: its login, for errors; `keys`: botocore's credentials; None: anonymous.

    `templates`: its way to send GET and HEAD.
    """

    client: Any
    credentials: str
    options: S3Options
    templates: ThreadTemplates
    keys: Any = field(default=None, repr=False)

    def retire(self) -> None:
        """Let the next request make a new client: this one's credentials are refused."""
        with _MAKING:
            if _CLIENTS.get(key := (os.getpid(), self.options)) is self:
                del _CLIENTS[key]


# A child process must not use the connections of its parent.
_CLIENTS: Final[dict[tuple[int, S3Options], ThreadClient]] = {}
# Making clients is not safe among threads.
_MAKING: Final = threading.Lock()


def thread_client(options: S3Options) -> ThreadClient:
    """Return this process's client. Raises botocore's errors, `OSError` and `ValueError` where none can be made."""
    with _MAKING:
        key = os.getpid(), options
        if key not in _CLIENTS:
            session = sync_session(options)
            client = session.create_client("s3", **client_arguments(options, Config))
            credentials = None if options.anonymous else session.get_credentials()
            name = credentials_name(options, credentials and credentials.method)
            _CLIENTS[key] = ThreadClient(client, name, options, ThreadTemplates(client), credentials)
        return _CLIENTS[key]


def delta_rs_settings(bucket: str, options: S3Options) -> Mapping[str, str]:
    """Return `storage_options` for delta-rs. Blocking. Raises `StorageError` where there is no valid login."""
    uri = f"s3://{bucket}"
    try:
        lent = thread_client(options)
        keys = None if lent.keys is None else lent.keys.get_frozen_credentials()
    except (BotoCoreError, ClientError, OSError, ValueError) as error:
        raise translate(error, uri, Place(f"the bucket {bucket}", options)) from error
    address = urlsplit(lent.client.meta.endpoint_url)
    is_path_style = (lent.client.meta.config.s3 or {}).get("addressing_style") == "path" or "." in bucket
    host = address.netloc if is_path_style else f"{bucket}.{address.netloc}"
    settings = {
        "aws_region": str(lent.client.meta.region_name),
        "aws_endpoint": f"{address.scheme}://{host}",
        "aws_allow_http": str(address.scheme == "http").lower(),
        "aws_virtual_hosted_style_request": str(not is_path_style).lower(),
        # A commit is a PUT with If-None-Match.
        "aws_conditional_put": "etag",
    }
    if options.requester_pays:
        settings["aws_request_payer"] = "true"
    if options.anonymous:
        return settings | {"aws_skip_signature": "true"}
    if keys is None:
        reason = "no credentials were found"
        raise StorageAccessRefused(uri, reason, "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile.")
    settings |= {"aws_access_key_id": keys.access_key, "aws_secret_access_key": keys.secret_key}
    if keys.token:
        settings["aws_session_token"] = keys.token
    elif os.environ.get(_TOKEN):
        # delta-rs would use it with the other keys.
        remedy = f"Unset {_TOKEN}, or let all stores log in through the environment."
        raise StorageAccessRefused(uri, f"{_TOKEN} is set, but does not belong to the keys {lent.credentials}", remedy)
    return settings
