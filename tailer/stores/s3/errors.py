"""Errors of S3's clients as ours: named after the object, with the next step, and without any secret.

Texts of the clients are not shown, because they may hold addresses with passwords. Of a server's answer, code and
message are shown, except where the message may repeat a key. A HEAD request has no message, only a status.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

import botocore.exceptions as boto
from botocore.exceptions import ClientError

from tailer.errors import (
    ObjectAlreadyExists,
    ObjectNotFound,
    StorageAccessRefused,
    StorageError,
    StorageUnavailable,
)
from tailer.stores.bucket.port import Failure, TornBody
from tailer.stores.s3 import S3Options

__all__ = [
    "CONFLICT",
    "EMPTY_RANGE",
    "EXPIRED",
    "NOT_FOUND",
    "PRECONDITION",
    "Place",
    "error_code",
    "failure_of",
    "message_of",
    "status_of",
    "translate",
]

NOT_FOUND: Final = frozenset({"404", "NoSuchKey", "NotFound"})
CONFLICT: Final = frozenset({"409", "ConditionalRequestConflict", "OperationAborted"})
EMPTY_RANGE: Final = frozenset({"416", "InvalidRange"})
PRECONDITION: Final = frozenset({"412", "PreconditionFailed"})

# New credentials may help. HEAD answers an expired token with a bare 400.
EXPIRED: Final = frozenset({"400", "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_WRONG_KEYS: Final = frozenset(
    {"InvalidAccessKeyId", "InvalidClientTokenId", "InvalidToken", "UnrecognizedClientException"}
    | {"XAdminUserNotFound"}
)
_WRONG_SECRET: Final = frozenset({"InvalidSignatureException", "SignatureDoesNotMatch"})
_DENIED: Final = frozenset(
    {"401", "403", "AccessDenied", "AccountProblem", "AllAccessDisabled", "Forbidden", "InvalidSecurity", "NotSignedUp"}
    | {"Unauthorized", "UnauthorizedAccess"}
)
_ELSEWHERE: Final = frozenset(
    {"301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)
_FAILURES: Final = (
    (EXPIRED, Failure.EXPIRED),
    (_WRONG_KEYS | _WRONG_SECRET, Failure.LOGIN),
    (NOT_FOUND, Failure.MISSING),
    (CONFLICT, Failure.CONFLICT),
)
# Requests that the server cannot serve, now or later.
_LASTING: Final = frozenset(
    {"405", "501", "EntityTooLarge", "InvalidArgument", "InvalidBucketName", "InvalidRequest", "InvalidURI"}
    | {"KeyTooLongError", "MethodNotAllowed", "NotImplemented", "ObjectParentIsFile"}
)
_WRITES: Final = frozenset({"PutObject", "CompleteMultipartUpload"})
_SIGN_IN: Final = frozenset({"AssumeRole", "AssumeRoleWithWebIdentity", "AssumeRoleWithSAML", "GetRoleCredentials"})
_SIGN_IN_LATER: Final = frozenset({"InternalFailure", "ServiceUnavailable", "Throttling", "ThrottlingException"})

_KEYS_HINT: Final = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile or a role, or set anonymous for a public bucket."
)
_RIGHTS_HINT: Final = (
    "Check the credentials, and allow s3:GetObject and s3:ListBucket; where lake-tailer writes, also s3:PutObject and "
    "s3:DeleteObject."
)
_CHECK_HINT: Final = "Check the location and the options of the store."
_MESSAGE_LENGTH: Final = 300


@dataclass(frozen=True, slots=True)
class Place:
    """Facts about a request for the errors about it.

    `noun`: what it reaches, as in `Bucket.noun`. `credentials`: their source; `host`: the server's.
    """

    noun: str
    options: S3Options
    credentials: str = "with the credentials found"
    host: str = "the endpoint"

    def through(self, client: Any, credentials: str) -> "Place":
        """Return the place as a client reaches it."""
        address = urlsplit(client.meta.endpoint_url)
        host = f"{address.hostname}:{address.port}" if address.port else str(address.hostname)
        return replace(self, credentials=credentials, host=host)


def error_code(error: BaseException) -> str:
    """Return S3's code for an error, or the status of an answer without one; empty where there was no answer."""
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", "")) or str(status_of(error))


def failure_of(error: BaseException) -> Failure:
    if isinstance(error, TornBody):
        return Failure.TORN
    if isinstance(error, boto.NoCredentialsError):
        return Failure.LOGIN
    code = error_code(error)
    return next((kind for codes, kind in _FAILURES if code in codes), Failure.OTHER)


def translate(error: Exception, uri: str, place: Place) -> StorageError:
    """Make our error from one of the clients, the connection or the system. `uri`: of the object or the folder."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, ClientError):
        return _answer(error, uri, place)
    for kinds, make in _CLIENT_FAULTS:
        # Other errors of TLS may be those of one connection.
        if isinstance(error, kinds) and (not isinstance(error, boto.SSLError) or "VERIFY_FAILED" in str(error)):
            reason, remedy = make(error, place)
            return StorageAccessRefused(uri, reason, remedy)
    return StorageUnavailable(uri, _no_answer(error, place))


def _answer(error: ClientError, uri: str, place: Place) -> StorageError:
    """Translate an error that the server reports. A failed precondition is `ObjectAlreadyExists`."""
    code = error_code(error)
    if error.operation_name in _SIGN_IN:
        if status_of(error) >= 500 or code in _SIGN_IN_LATER:
            return StorageUnavailable(uri, f"no credentials from {error.operation_name}: {code}")
        remedy = "Check the role, its trust policy and external_id, and the credentials that assume it."
        return StorageAccessRefused(uri, f"{error.operation_name} was refused {place.credentials}: {code}", remedy)
    if code in NOT_FOUND:
        if error.operation_name in _WRITES:  # some servers answer so while another write of the object is under way
            return StorageUnavailable(uri, f"{code} for a write")
        return ObjectNotFound(uri)
    if code in PRECONDITION:
        return ObjectAlreadyExists(uri)
    for codes, explain in _REFUSALS:
        if code in codes:
            return StorageAccessRefused(uri, *explain(error, place))
    if code.startswith("KMS."):
        return StorageAccessRefused(uri, *_impossible(error, place))
    return StorageUnavailable(uri, f"{code}{message_of(error)}")


def _no_answer(error: Exception, place: Place) -> str:
    """Describe a failure without an answer of the server."""
    reasons: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
        ((boto.ReadTimeoutError, boto.ConnectTimeoutError, TimeoutError), f"no answer from {place.host} in time"),
        (boto.ProxyConnectionError, "the HTTP proxy cannot be reached"),
        (boto.EndpointConnectionError, f"{place.host} cannot be reached"),
        (TornBody, f"{place.host} did not send the whole object"),
        ((boto.CredentialRetrievalError, boto.MetadataRetrievalError), "credentials cannot be retrieved"),
    )
    named = next((text for kinds, text in reasons if isinstance(error, kinds)), None)
    return named or f"the connection to {place.host} failed ({type(error).__name__})"


def status_of(error: ClientError) -> int:
    """Return the status of the answer; 0 where there was none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def message_of(error: ClientError) -> str:
    """Return the server's message on one line, to be appended; empty where there is none."""
    text = " ".join(str(error.response.get("Error", {}).get("Message", "")).split())
    return f": {text[:_MESSAGE_LENGTH]}" if text else ""


_Kinds = type[Exception] | tuple[type[Exception], ...]
_Explain = Callable[[Any, Place], tuple[str, str]]


def _elsewhere(error: ClientError, place: Place) -> tuple[str, str]:
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = str(headers.get("x-amz-bucket-region") or error.response.get("Error", {}).get("Region") or "")
    remedy = f"Set region to {region}." if region else f"Set region to that of {place.noun}."
    return f"{place.noun} is in another region ({error_code(error)})", remedy


def _denied(error: ClientError, place: Place) -> tuple[str, str]:
    reason = f"access to {place.noun} is denied ({error_code(error)}), {place.credentials}"
    return f"{reason}{message_of(error)}", _RIGHTS_HINT


def _impossible(error: ClientError, _place: Place) -> tuple[str, str]:
    return f"the server refuses the request: {error_code(error)}{message_of(error)}", _CHECK_HINT


# The first row with the code of an answer explains it. Only answers that last are here.
_REFUSALS: Final[tuple[tuple[frozenset[str], _Explain], ...]] = (
    (
        frozenset({"NoSuchBucket"}),
        lambda _, place: (f"{place.noun} does not exist", "Check the bucket's name, the endpoint and the region."),
    ),
    (
        _WRONG_KEYS,
        lambda error, place: (
            f"the server does not know the access key ({error_code(error)}), {place.credentials}",
            _KEYS_HINT,
        ),
    ),
    (
        _WRONG_SECRET,
        lambda error, place: (
            f"the secret key does not fit the access key ({error_code(error)}), {place.credentials}",
            "Check AWS_SECRET_ACCESS_KEY, the region, and proxies that change requests.",
        ),
    ),
    (
        frozenset({"RequestTimeTooSkewed"}),
        lambda error, _: (
            f"the clocks of this machine and of the server differ ({error_code(error)})",
            "Set this machine's clock.",
        ),
    ),
    (
        frozenset({"InvalidObjectState"}),
        lambda error, _: (
            f"the object is archived ({error_code(error)})",
            "Restore it, and keep the table's files out of archive classes.",
        ),
    ),
    (_ELSEWHERE, _elsewhere),
    (_DENIED, _denied),
    (_LASTING, _impossible),
)

# The first row with the kind of an error explains it. Only errors that last are here.
_CLIENT_FAULTS: Final[tuple[tuple[_Kinds, _Explain], ...]] = (
    (
        boto.NoCredentialsError,
        lambda _, place: (
            "no credentials were found"
            + ("" if place.options.profile is None else f" in the profile {place.options.profile}"),
            _KEYS_HINT,
        ),
    ),
    (
        boto.PartialCredentialsError,
        lambda error, _: (
            f"the credentials from {error.kwargs['provider']} lack {error.kwargs['cred_var']}",
            _KEYS_HINT,
        ),
    ),
    (
        boto.ProfileNotFound,
        lambda _, place: (
            f"the profile {place.options.profile or 'of AWS_PROFILE'} does not exist",
            "Add it to AWS's shared configuration, or name another one.",
        ),
    ),
    (
        (boto.SSOError, boto.LoginError, boto.TokenRetrievalError),
        lambda *_: ("the sign-in has expired or is missing", "Sign in again: aws sso login, or aws login."),
    ),
    (
        boto.SSLError,
        lambda _, place: (
            f"the certificate of {place.host} is not trusted",
            "Set AWS_CA_BUNDLE to a file with the certificates to trust, or correct the endpoint.",
        ),
    ),
    (
        (
            boto.BaseEndpointResolverError,
            boto.ConfigNotFound,
            boto.ConfigParseError,
            boto.EndpointProviderError,
            boto.InvalidConfigError,
            boto.InvalidProxiesConfigError,
            boto.InvalidRetryConfigurationError,
            boto.ParamValidationError,
            boto.UnsupportedS3ConfigurationError,
            boto.ValidationError,
            ValueError,
        ),
        lambda error, place: (
            f"the client refuses its settings or {place.noun} ({type(error).__name__})",
            _CHECK_HINT,
        ),
    ),
)
