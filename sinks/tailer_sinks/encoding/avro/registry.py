"""A client of schema registries with Confluent's API, the source of schema ids.

A schema is first looked up, which needs no permission to write. If the subject lacks it, it is checked against the
latest version, or against all if the subject's rule is transitive, so that a refusal can name the columns, and then
registered; or refused if registering is switched off. Known subjects and schemas are cached, because an id never
changes.

`SchemaRegistry` blocks, and several threads may call it. It connects again for each unknown schema: at the start, and
when columns change.

Confluent's own client comes with librdkafka, for which some platforms need a compiler, and with authlib and
cryptography: 30 MB, where this one needs httpx2 alone. Its errors would still have to become ours, with the columns.

The registry decides about compatibility, by Avro's rules. These compare the form of values more than their meaning: a
long may become a timestamp, and a decimal a string. A reader of the new schema then misreads old messages, unless it
knows the schema with which they were written.
"""

import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from tailer.errors import ConfigError, SinkAccessRefused, SinkRejected, SinkUnavailable

__all__ = ["RegistryAccess", "SchemaRegistry", "check_address", "differences"]

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
NO_SUBJECT: Final = 40401
ABSENT: Final = frozenset([NO_SUBJECT, 40402, 40403])  # also no such version, schema
LARGEST_ID: Final = 2**31 - 1
LONGEST_TEXT: Final = 600
REFUSED_SCHEMA: Final = (
    "If all readers can live with the change, set the subject's compatibility to one that allows it, such as NONE. "
    "Or keep the columns as they were with select, or deliver to a new topic, by another pipeline."
)


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """Access to a registry. `urls`: of one registry, tried in turn, such as `https://registry:8081`.

    `username` and `password`, or `token` for a bearer token. Files are PEM; `ca_file` None: the system's certificates.
    `certificate_file`, `key_file`, `key_password`: the client's certificate, if any. `timeout_s`: for each step of a
    request.
    """

    urls: Sequence[str]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    timeout_s: float = 10.0


class _Failure(msgspec.Struct):
    error_code: int = 0
    message: str = ""


class _Registered(msgspec.Struct):
    id: int


class _Compatibility(msgspec.Struct):
    is_compatible: bool
    messages: list[str] = []


class _Version(msgspec.Struct):
    schema: str


class _Rule(msgspec.Struct):
    level: str = msgspec.field(name="compatibilityLevel")


class _Absent(Exception):
    """The error for a subject, version or schema that the registry does not have."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class _Refused(Exception):
    """The error for a schema that the registry refuses, with its words."""


A = TypeVar("A", _Registered, _Compatibility, _Version, _Rule, list[int])


def check_address(where: str, url: str) -> None:
    """Raise `ConfigError` about `where`, without quoting `url`, unless it is the address of a registry."""
    try:
        parts = urlsplit(url)
        is_sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and not (parts.query or parts.fragment)
        is_sound = is_sound and (parts.port is None or parts.port > 0)
    except ValueError:
        raise ConfigError(where, "is not an address", "Give one such as https://registry:8081.") from None
    if "@" in parts.netloc:
        raise ConfigError(
            where, "contains a user name or a password", "Remove them; use registry_username and registry_password."
        )
    if not is_sound:
        raise ConfigError(where, "is not an address", "Give one such as https://registry:8081.")


class SchemaRegistry:
    """The ids of schemas. `sink`: its name in errors. `auto_register` False: schemas are only looked up.

    Raises `ConfigError` for an invalid address, and for two kinds of credentials.
    """

    def __init__(self, sink: str, access: RegistryAccess, auto_register: bool = True) -> None:
        for url in access.urls or [""]:
            check_address(f"{sink}.registry_url", url)
        if access.token is not None and access.username is not None:
            raise ConfigError(f"{sink}.registry_token", "is given together with a username", "Give one of them.")
        self._sink = sink
        self._access = access
        self._auto_register = auto_register
        self._ids: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._first = 0

    def schema_id(self, subject: str, schema: str) -> int:
        """Return the id of `schema` (Avro, as JSON) in `subject`, registering it if necessary and allowed.

        Raises `SinkUnavailable` if no address of the registry answers, `SinkRejected` if it refuses access or the
        schema, and if the schema is missing and may not be registered.
        """
        return self._id(subject, schema)

    def look(self, subject: str, schema: str, *, passes_new: bool = False) -> int:
        """Raise as `schema_id` does, but register nothing: a schema that it would register has the id 0.

        `passes_new`: whether nothing is raised for a subject that does not exist.
        """
        return self._id(subject, schema, only_looks=True, passes_new=passes_new)

    def _id(self, subject: str, schema: str, *, only_looks: bool = False, passes_new: bool = False) -> int:
        with self._lock:
            number = self._ids.get((subject, schema))
            if number is not None:
                return number
            with self._client() as client:
                try:
                    number = self._known_id(client, subject, schema, passes_new)
                    if number is None and only_looks:
                        return 0
                    if number is None:
                        number = self._registered_id(client, subject, schema)
                except _Refused as refused:
                    raise self._refusal(client, subject, str(refused)) from None
            self._ids[subject, schema] = number
            return number

    def _known_id(self, client: httpx2.Client, subject: str, schema: str, passes_new: bool) -> int | None:
        """Return the id that the subject has for the schema; None: it lacks the schema, and would take it."""
        try:
            return self._checked(subject, self._send(client, "POST", _path(subject), {"schema": schema}, _Registered))
        except _Absent as absent:
            if not self._auto_register and not (passes_new and absent.code == NO_SUBJECT):
                reason = f"subject {subject} of the schema registry does not have the schema of the rows"
                remedy = f"Register it there, or let the sink do it: registry_register = true. It is: {schema}"
                raise SinkRejected(self._sink, reason, remedy) from None
        self._check_compatible(client, subject, schema)
        return None

    def _registered_id(self, client: httpx2.Client, subject: str, schema: str) -> int:
        try:
            path = f"{_path(subject)}/versions"
            return self._checked(subject, self._send(client, "POST", path, {"schema": schema}, _Registered))
        except _Absent:
            raise self._unexpected("it can neither find nor register a schema") from None

    def _checked(self, subject: str, registered: _Registered) -> int:
        if not 0 <= registered.id <= LARGEST_ID:
            raise self._unexpected(
                f"it gives the id {registered.id} in subject {subject}, which does not fit into a message"
            )
        return registered.id

    def _check_compatible(self, client: httpx2.Client, subject: str, schema: str) -> None:
        """Raise `SinkRejected` if the subject refuses the schema beside its latest one, or any by a transitive rule."""
        try:
            versions = self._send(client, "GET", f"{_path(subject)}/versions", None, list[int])
            is_transitive = len(versions) > 1 and self._rule(client, subject).endswith("_TRANSITIVE")
            for version in reversed(versions if is_transitive else versions[-1:]):
                place = f"{_path(subject)}/versions/{version}"
                answer = self._send(
                    client, "POST", f"/compatibility{place}?verbose=true", {"schema": schema}, _Compatibility
                )
                if not answer.is_compatible:
                    former = self._send(client, "GET", place, None, _Version)
                    said = "; ".join(text for text in answer.messages if not text.startswith("{oldSchema"))
                    columns = "; ".join(differences(former.schema, schema)) or "no column has changed"
                    beside = f" beside version {version}" if is_transitive else ""
                    raise self._refusal(client, subject, said, f"{beside}: {columns}")
        except _Absent:  # the first schema of a subject
            return

    def _rule(self, client: httpx2.Client, subject: str) -> str:
        """Return the compatibility that the registry demands of a subject; empty: it does not say."""
        for place in (f"/config/{quote(subject, safe='')}?defaultToGlobal=true", "/config"):
            try:
                return self._send(client, "GET", place, None, _Rule).level
            except (_Absent, _Refused, SinkRejected):
                continue
        return ""

    def _refusal(self, client: httpx2.Client, subject: str, said: str, columns: str = "") -> SinkRejected:
        rule = self._rule(client, subject)
        reason = f"subject {subject} of the schema registry rejects the new schema{f' by its rule {rule}' * bool(rule)}"
        return SinkRejected(self._sink, f"{reason}{columns}{f' (it says: {_cut(said)})' * bool(said)}", REFUSED_SCHEMA)

    def _send(self, client: httpx2.Client, method: str, path: str, body: Any, answer: type[A]) -> A:
        """Return the answer of the first address that has one, starting with the last that did.

        Raises `_Absent` and `_Refused`.
        """
        content = None if body is None else msgspec.json.encode(body)
        reasons = []
        for step in range(len(self._access.urls)):
            place = (self._first + step) % len(self._access.urls)
            url = self._access.urls[place].rstrip("/")
            try:
                response = client.request(method, f"{url}{path}", content=content)
            except httpx2.TimeoutException:
                reasons.append(f"{_host(url)} does not answer in time")
            except httpx2.HTTPError as error:
                reasons.append(f"{_host(url)} cannot be reached: {_cut(str(error)) or type(error).__name__}")
            else:
                if response.status_code >= 500 or response.status_code in {408, 429}:
                    reasons.append(f"{_host(url)} answers {_status(response)}")
                    continue
                self._first = place
                return self._understood(response, answer)
        raise SinkUnavailable(self._sink, f"the schema registry: {'; '.join(reasons)}")

    def _understood(self, response: httpx2.Response, answer: type[A]) -> A:
        status = response.status_code
        try:
            if status == HTTPStatus.OK:
                return msgspec.json.decode(response.content, type=answer)
            failure = msgspec.json.decode(response.content, type=_Failure)
        except msgspec.DecodeError:
            if status == HTTPStatus.OK:
                raise self._unexpected("its answer is not that of a schema registry") from None
            failure = _Failure()
        if status == HTTPStatus.NOT_FOUND and failure.error_code in ABSENT:
            raise _Absent(failure.error_code)
        said = f"{_status(response)}{': ' if failure.message else ''}{_cut(failure.message)}"
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            remedy = "Check registry_username and registry_password, or registry_token, and their permissions."
            raise SinkAccessRefused(self._sink, f"the schema registry refuses access: {said}", remedy)
        if status in {HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY}:
            raise _Refused(said)
        raise self._unexpected(said)

    def _unexpected(self, reason: str) -> SinkRejected:
        remedy = "Check registry_url: it must be the root of an API like Confluent's, with its path if it has one."
        return SinkRejected(self._sink, f"the schema registry: {reason}", remedy)

    def _client(self) -> httpx2.Client:
        access = self._access
        auth = None
        headers = {"Content-Type": MEDIA_TYPE, "Accept": f"{MEDIA_TYPE}, application/json"}
        if access.username is not None:
            auth = httpx2.BasicAuth(access.username, access.password or "")
        elif access.token is not None:
            headers["Authorization"] = f"Bearer {access.token}"
        return httpx2.Client(auth=auth, headers=headers, verify=self._tls(), timeout=access.timeout_s)

    def _tls(self) -> ssl.SSLContext | bool:
        access = self._access
        if access.ca_file is None and access.certificate_file is None:
            # Plain HTTP has nothing to verify, and a context takes 20 ms.
            return any(urlsplit(url).scheme == "https" for url in access.urls)
        context = ssl.create_default_context()
        file = access.ca_file
        try:
            if file is not None:
                context = ssl.create_default_context(cafile=file)
            if (file := access.certificate_file) is not None:
                context.load_cert_chain(file, access.key_file, access.key_password or "")
        except (OSError, ssl.SSLError) as error:
            why = getattr(error, "strerror", None) or "it is not PEM, or its key or password does not fit"
            raise SinkRejected(
                self._sink, f"{file} cannot be read: {why}", "Check the certificate and key files."
            ) from None
        return context


def differences(before: str, after: str) -> list[str]:
    """Describe the differences in the columns of two schemas (Avro, as JSON), one sentence each."""
    try:
        old, new = (_columns(msgspec.json.decode(schema)) for schema in (before, after))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return []
    both = [name for name in new if name in old]
    changed = [f"column {name} was {old[name]} and is {new[name]}" for name in both if old[name] != new[name]]
    added = [f"column {name} is new: {new[name]}" for name in new if name not in old]
    return [*changed, *added, *(f"column {name} was removed" for name in old if name not in new)]


def _columns(schema: Any, prefix: str = "") -> dict[str, str]:
    """Map the names of columns that are not records, dotted, to their types."""
    if not prefix and schema["name"] == "Envelope":
        images = next(field["type"] for field in schema["fields"] if field["name"] == "before")
        return _columns(images[-1])
    kinds: dict[str, str] = {}
    for entry in schema["fields"]:
        name = prefix + entry.get("column", entry["name"])
        kind = entry["type"]
        inner = kind[-1] if isinstance(kind, list) else kind
        if isinstance(inner, dict) and inner["type"] == "record":
            kinds |= _columns(inner, f"{name}.")
        else:
            kinds[name] = _kind(kind)
    return kinds


def _kind(kind: Any) -> str:
    """Describe a type in words."""
    if isinstance(kind, str):
        return kind
    if isinstance(kind, list):
        return " or ".join(_kind(branch) for branch in [*kind[1:], *kind[:1]])
    if kind.get("logicalType") == "decimal":
        return f"decimal({kind['precision']},{kind['scale']})"
    inner = {"array": "items", "map": "values"}.get(kind["type"])
    if inner is not None:
        return f"{kind['type']} of ({_kind(kind[inner])})"
    if kind["type"] == "record":
        members = (f"{entry.get('column', entry['name'])} {_kind(entry['type'])}" for entry in kind["fields"])
        return f"record ({', '.join(members)})"
    return str(kind.get("connect.type") or kind.get("logicalType") or kind["type"])


def _path(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}"


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _status(response: httpx2.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}".strip()


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."
