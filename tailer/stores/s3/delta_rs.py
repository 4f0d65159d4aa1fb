"""The settings of delta-rs for a bucket: its own client gets the login, region and endpoint that ours found.

They hold keys, so they are made anew for each use, and are in no text. Keys that expire are renewed by botocore before
they do.
"""

import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from tailer.errors import StorageAccessRefused
from tailer.stores.s3.errors import Place, translate
from tailer.stores.s3.options import S3Options
from tailer.stores.s3.thread_clients import thread_client

__all__ = ["delta_rs_settings"]

_TOKEN: Final = "AWS_SESSION_TOKEN"


def delta_rs_settings(bucket: str, options: S3Options) -> Mapping[str, str]:
    """Return `storage_options` for delta-rs. Blocking. Raises `StorageError` where there is no valid login."""
    uri = f"s3://{bucket}"
    try:
        lent = thread_client(options)
        keys = None if lent.keys is None else lent.keys.get_frozen_credentials()
    except (BotoCoreError, ClientError, OSError, ValueError) as error:
        raise translate(error, uri, Place(bucket, options)) from error
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
