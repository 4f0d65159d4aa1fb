"""Errors of S3's clients become ours: kind, reason, next step, and no secret."""

from typing import Any

import aiohttp
import botocore.exceptions as boto
from botocore.exceptions import ClientError
from urllib3.exceptions import ProtocolError

from tailer.errors import (
    ObjectAlreadyExists,
    ObjectNotFound,
    Retry,
    StorageAccessRefused,
    StorageError,
    StorageUnavailable,
)
from tailer.stores.bucket.port import Failure, TornBody
from tailer.stores.bucket.requests import Attempts
from tailer.stores.s3 import S3Options
from tailer.stores.s3.bucket import S3Bucket
from tailer.stores.s3.errors import Place, error_code, failure_of, translate
from tests.support.cases import cases

URI = "s3://shop/orders/a"
PLACE = Place("the bucket shop", S3Options(profile="sales"), "with credentials from env", "minio.example:9000")
SECRET = "hush+hush/AlsoForTests"


def answer(code: str, status: int, message: str = "as told", operation: str = "GetObject", **more: Any) -> ClientError:
    """Make the error of an answer; `more` are headers."""
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": {name.replace("_", "-"): more[name] for name in more}}
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": metadata}, operation)


@cases(
    ("error", "kind", "text", "hint"),
    [
        (answer("NoSuchKey", 404), ObjectNotFound, "not found", ""),
        (answer("404", 404, operation="HeadObject"), ObjectNotFound, "not found", ""),
        (answer("NoSuchKey", 404, operation="PutObject"), StorageUnavailable, "NoSuchKey for a write", ""),
        (answer("PreconditionFailed", 412), ObjectAlreadyExists, "exists", ""),
        (answer("NoSuchBucket", 404), StorageAccessRefused, "the bucket shop does not exist", "endpoint"),
        (
            answer("AccessDenied", 403),
            StorageAccessRefused,
            "denied (AccessDenied), with credentials from env",
            "ListB",
        ),
        (answer("403", 403, "Forbidden", "HeadObject"), StorageAccessRefused, "access to the bucket shop", "s3:Get"),
        (answer("InvalidAccessKeyId", 403, SECRET), StorageAccessRefused, "not know the access key", "AWS_ACCESS"),
        (answer("SignatureDoesNotMatch", 403, SECRET), StorageAccessRefused, "secret key does not fit", "AWS_SECRET"),
        (answer("RequestTimeTooSkewed", 403), StorageAccessRefused, "clocks", "clock"),
        (answer("InvalidObjectState", 403), StorageAccessRefused, "archived", "Restore"),
        (
            answer("PermanentRedirect", 301, x_amz_bucket_region="eu-west-3"),
            StorageAccessRefused,
            "region",
            "eu-west-3",
        ),
        (answer("AuthorizationHeaderMalformed", 400), StorageAccessRefused, "another region", "bucket shop"),
        (answer("301", 301, operation="HeadObject"), StorageAccessRefused, "another region", "bucket shop"),
        (answer("NotImplemented", 501, "no If-None-Match"), StorageAccessRefused, "no If-None-Match", "options"),
        (answer("KMS.DisabledException", 400), StorageAccessRefused, "KMS.Disabled", "options"),
        (answer("SlowDown", 503), StorageUnavailable, "SlowDown: as told", ""),
        (answer("InternalError", 500), StorageUnavailable, "InternalError", ""),
        (answer("ExpiredToken", 400), StorageUnavailable, "ExpiredToken", ""),
        (answer("", 502, ""), StorageUnavailable, "502", ""),
        (answer("SomethingNew", 400, "in two\nlines"), StorageUnavailable, "SomethingNew: in two lines", ""),
        (answer("AccessDenied", 403, SECRET, "AssumeRole"), StorageAccessRefused, "AssumeRole was refused", "trust"),
        (answer("Throttling", 400, SECRET, "AssumeRole"), StorageUnavailable, "no credentials from AssumeRole", ""),
        (boto.NoCredentialsError(), StorageAccessRefused, "no credentials were found in the profile sales", "AWS_ACC"),
        (boto.PartialCredentialsError(provider="env", cred_var="x"), StorageAccessRefused, "from env lack x", "AWS_"),
        (boto.ProfileNotFound(profile="sales"), StorageAccessRefused, "the profile sales does not exist", "Add it"),
        (boto.SSOTokenLoadError(error_msg=SECRET), StorageAccessRefused, "sign-in has expired", "aws sso login"),
        (boto.ParamValidationError(report=SECRET), StorageAccessRefused, "settings or the bucket shop", "location"),
        (ValueError(f"Invalid endpoint: {SECRET}"), StorageAccessRefused, "settings or the bucket shop", "location"),
        (
            boto.SSLError(endpoint_url=SECRET, error="CERTIFICATE_VERIFY_FAILED"),
            StorageAccessRefused,
            "the certificate of minio.example:9000 is not trusted",
            "AWS_CA_BUNDLE",
        ),
        (boto.SSLError(endpoint_url=SECRET, error="EOF"), StorageUnavailable, "failed (SSLError)", ""),
        (boto.EndpointConnectionError(endpoint_url=SECRET), StorageUnavailable, "9000 cannot be reached", ""),
        (boto.ReadTimeoutError(endpoint_url=SECRET), StorageUnavailable, "no answer from minio.example:9000", ""),
        (boto.ProxyConnectionError(proxy_url=SECRET), StorageUnavailable, "HTTP proxy cannot be reached", ""),
        (boto.CredentialRetrievalError(provider="x", error_msg=SECRET), StorageUnavailable, "cannot be retrieved", ""),
        (boto.ConnectionClosedError(endpoint_url=SECRET), StorageUnavailable, "(ConnectionClosedError)", ""),
        (TornBody(), StorageUnavailable, "did not send the whole object", ""),
        (aiohttp.ClientPayloadError(SECRET), StorageUnavailable, "(ClientPayloadError)", ""),
        (ProtocolError(SECRET), StorageUnavailable, "(ProtocolError)", ""),
        (OSError(5, SECRET), StorageUnavailable, "(OSError)", ""),
    ],
)
def test_an_error_names_the_next_step(error: Exception, kind: type[StorageError], text: str, hint: str) -> None:
    found = translate(error, URI, PLACE)
    assert type(found) is kind
    assert found.path == URI
    assert text in str(found)
    assert hint in found.hint
    assert SECRET not in f"{found} {found.hint} {found!r}"
    assert found.retry is {
        ObjectAlreadyExists: Retry.ASK,
        StorageUnavailable: Retry.TIMED,
        StorageAccessRefused: Retry.BRIEF,
    }.get(kind, Retry.MANUAL)


def test_a_long_message_is_cut() -> None:
    assert len(str(translate(answer("Odd", 400, "x" * 5000), URI, PLACE))) < 500


def test_our_errors_pass() -> None:
    error = StorageUnavailable(URI, "as it is")
    assert translate(error, URI, PLACE) is error


def test_codes_are_those_of_the_answer_or_its_status() -> None:
    codes = [error_code(error) for error in (answer("NoSuchKey", 404), answer("", 502), OSError())]
    assert codes == ["NoSuchKey", "502", ""]
    assert failure_of(answer("ExpiredToken", 400)) is Failure.EXPIRED
    assert failure_of(answer("400", 400, operation="HeadObject")) is Failure.EXPIRED
    assert failure_of(answer("RequestTimeout", 400)) is Failure.OTHER


def test_further_attempts_are_few() -> None:
    lake = S3Bucket("lake", S3Options())
    attempts = Attempts(lake, "get", missing=1)
    expired, missing = answer("ExpiredToken", 400), answer("NoSuchKey", 404)
    assert [attempts.take(error) for error in (expired, missing, TornBody(), TornBody())] == [True] * 4
    assert not any(attempts.take(error) for error in (expired, missing, TornBody(), answer("SlowDown", 503)))
    assert not Attempts(lake, "get").take(missing)
