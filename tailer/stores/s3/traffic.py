"""Counting of requests to S3 and of their faults, through the hooks that botocore calls at every attempt.

The hooks are those of a session, so they see the requests of all its clients, also those for credentials. They do not
see a body that ends early, nor an error before the request is sent; `unseen_fault` names those.
"""

from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final

import aiohttp
import botocore.exceptions as boto
from botocore import xform_name
from urllib3.exceptions import HTTPError
from urllib3.exceptions import TimeoutError as Urllib3TimeoutError

from tailer.stores.bucket.port import TornBody
from tailer.stores.s3 import S3Options
from tailer.stores.s3.errors import CONFLICT, EMPTY_RANGE, EXPIRED, NOT_FOUND, PRECONDITION
from tailer.stores.traffic import FAULTS, REQUESTS, Fault

__all__ = ["REQUEST", "count_traffic", "unseen_fault", "verb_of"]

# The key of store and verb in the context of a request, which all its attempts share.
REQUEST: Final = "lake-tailer-request"

_VERBS: Final = {
    "get_object": "get",
    "head_object": "head",
    "list_objects_v2": "list",
    "put_object": "put",
    "delete_object": "delete",
}
_CREATING: Final = frozenset({"put", "complete_multipart_upload"})
_THROTTLED: Final = frozenset({"SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestThrottled"})
_TIMEOUTS: Final = (boto.ConnectTimeoutError, boto.ReadTimeoutError, Urllib3TimeoutError, TimeoutError)
_TORN: Final = (aiohttp.ClientError, HTTPError, HTTPException)


def verb_of(operation: str) -> str:
    """Return the label for an operation, as the API or as Python's clients spell it."""
    name = str(xform_name(operation))
    return _VERBS.get(name, name)


def count_traffic(session: Any, options: S3Options) -> None:
    """Count the requests of all clients that `session` makes from now on."""

    def label(params: Mapping[str, Any], context: dict[str, Any], model: Any, **_: object) -> None:
        bucket = params.get("Bucket") or model.service_model.service_name
        context[REQUEST] = options.store_name(bucket), verb_of(model.name)

    session.register("before-parameter-build", label)
    session.register("request-created", lambda request, **_: REQUESTS.add(request.context[REQUEST], 1))
    session.register("response-received", _count_fault)


def unseen_fault(error: BaseException) -> Fault | None:
    """Return the fault of an attempt that ended with `error`; None where a hook has counted it."""
    if isinstance(error, TornBody):
        return Fault.TIMEOUT if isinstance(error.__cause__, _TIMEOUTS) else Fault.TORN_BODY
    if isinstance(error, boto.ClientError | boto.HTTPClientError | boto.ConnectionError):
        return None
    if isinstance(error, _TIMEOUTS):
        return Fault.TIMEOUT
    if isinstance(error, _TORN):
        return Fault.TORN_BODY
    return Fault.CONNECTION if isinstance(error, OSError) else Fault.REFUSED


def _count_fault(
    parsed_response: Mapping[str, Any] | None, context: Mapping[str, Any], exception: Exception | None, **_: object
) -> None:
    store, verb = context[REQUEST]
    fault = _fault_without_answer(exception) if parsed_response is None else _fault_of_answer(parsed_response, verb)
    if fault is not None:
        FAULTS.add((store, verb, fault), 1)


def _fault_without_answer(error: Exception | None) -> Fault:
    if isinstance(error, _TIMEOUTS):
        return Fault.TIMEOUT
    cause = error.kwargs.get("error") if isinstance(error, boto.HTTPClientError) else None
    return Fault.TORN_BODY if isinstance(cause, aiohttp.ClientPayloadError) else Fault.CONNECTION


def _fault_of_answer(answer: Mapping[str, Any], verb: str) -> Fault | None:
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(answer.get("Error", {}).get("Code", "")) or str(status)
    if status < 300 or status == 304 or code in EMPTY_RANGE | NOT_FOUND:
        return None
    if code in PRECONDITION:
        # Puts that find out whether a server knows the condition must fail, so the store counts the others.
        return None if verb in _CREATING else Fault.CONFLICT
    if status in (429, 503) or code in _THROTTLED:
        return Fault.THROTTLED
    if code == "RequestTimeout":
        return Fault.TIMEOUT
    if status >= 500:
        return Fault.SERVER_ERROR
    if code in CONFLICT:
        return Fault.CONFLICT
    return Fault.EXPIRED_TOKEN if code in EXPIRED else Fault.REFUSED
