"""The options of a `sql` sink, checked before any I/O."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from tailer.errors import ConfigError, how_to_install
from tailer.stores.secrets import Secret
from tailer_sinks import read_options
from tailer_sinks.sql.bad_values.policy import OnBadValue

__all__ = ["DUCKDB", "Options", "file_of", "read"]

_SQLITE = "sqlite:///"
DUCKDB = "duckdb:///"
_FILES = (_SQLITE, DUCKDB)
_POSTGRESQL = ("postgresql", "postgres")
_LONGEST_NAME = 63  # of a table in PostgreSQL, in bytes


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options in the configuration."""

    url: str  # "postgresql://user@host:5432/database", "sqlite:///mirror.db" or "duckdb:///mirror.duckdb"
    table: str = ""  # default: the pipeline's name
    mode: Literal["mirror", "history", "append"] = "mirror"  # equal to the source, each state of a row, or a log
    deletes: Literal["remove", "mark"] = "remove"  # of a mirror: what a row that is deleted in the source becomes
    key: list[str] = []  # of a mirror: columns that identify a row; default: row ids, or the source's key
    names: Literal["exact", "lower"] = "exact"  # of columns: as in the source, or in lower case; a key may have either
    adopt: bool = False  # allow a mirror to fill an empty table that a user made
    boundary: Literal["version", "chunk"] = "version"  # what becomes visible at once; chunk: only with append
    schema: str | None = None  # PostgreSQL: schema for all tables; default: the user's
    password: Secret = Secret()  # PostgreSQL: the password
    on_bad_value: OnBadValue = "stop"  # a value that the database cannot hold: "null", "replace" or "dead_letter"
    timeout_s: float = 600.0  # seconds that a call of the database may take

    def __repr__(self) -> str:
        """Return a text without the password."""
        return f"Options(url={self.url!r}, table={self.table!r}, mode={self.mode!r})"


def read(name: str, options: Mapping[str, Any]) -> Options:
    """Read the options of the sink called `name`; no I/O.

    Raises `ConfigError` naming the option; several as an `ExceptionGroup`.
    """
    given = read_options(name, options, Options, _check_url, _check_table, _check_others)
    return msgspec.structs.replace(given, table=given.table or name, key=_key(given))


def file_of(options: Options) -> Path | None:
    """Return the file of a database; None: the url is that of a server."""
    scheme = next((prefix for prefix in _FILES if options.url.startswith(prefix)), None)
    return None if scheme is None else Path(options.url.removeprefix(scheme))


def _key(options: Options) -> list[str]:
    return [column.lower() if options.names == "lower" else column for column in options.key]


def _check_url(name: str, options: Options) -> Iterator[ConfigError]:
    where, url = f"{name}.url", options.url
    if url.startswith(_FILES):
        if url in _FILES or ":memory:" in url or "?" in url:
            yield ConfigError(where, "names no file", f'Give a file, such as "{_SQLITE}mirror.db".')
        return
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # brackets without an address, or a port that is none
        parts, port = urlsplit(""), None
    if parts.scheme not in _POSTGRESQL or not parts.path.strip("/") or port == 0:
        remedy = f'Give "postgresql://user@host:5432/database", "{_SQLITE}mirror.db" or "{DUCKDB}mirror.duckdb".'
        yield ConfigError(where, "is not the address of a database", remedy)
    elif parts.password is not None or any(unquote(key).lower() == "password" for key, _ in parse_qsl(parts.query)):
        remedy = "Leave it out there, and give the option password (docs/secrets.md)."
        yield ConfigError(where, "has a password in it, and addresses are in logs", remedy)
    elif find_spec("psycopg") is None:
        yield ConfigError(where, "PostgreSQL needs psycopg", how_to_install("postgresql"))


def _check_table(name: str, options: Options) -> Iterator[ConfigError]:
    given = {"table": options.table or name, "schema": options.schema}
    for option, value in given.items():
        if value is None:
            continue
        if not value or "\0" in value or len(value.encode()) > _LONGEST_NAME:
            remedy = f"Give a name of at most {_LONGEST_NAME} bytes."
            yield ConfigError(f"{name}.{option}", f"{value!r} cannot be a name in a database", remedy)
        elif value.lower().startswith("lake_tailer_"):
            reason = "begins with lake_tailer_, as the sink's own tables do"
            yield ConfigError(f"{name}.{option}", reason, "Give it another name.")


def _check_others(name: str, options: Options) -> Iterator[ConfigError]:
    if len(set(_key(options))) < len(options.key):
        yield ConfigError(f"{name}.key", "names a column twice", "Name each column once.")
    if options.mode == "append" and options.key:
        yield ConfigError(f"{name}.key", "is for a mirror", 'Leave it out, or set mode = "mirror".')
    if options.adopt and (options.mode != "mirror" or options.deletes == "mark"):
        reason = "is for a mirror, from whose table deleted rows are removed"
        yield ConfigError(f"{name}.adopt", reason, 'Leave it out, or set mode = "mirror" and deletes = "remove".')
    if options.mode != "append" and options.boundary == "chunk":
        remedy = 'Leave it out, or set mode = "append".'
        yield ConfigError(f"{name}.boundary", f"chunk is not for a {options.mode}, which shows whole versions", remedy)
    if options.mode != "mirror" and options.deletes == "mark":
        reason = f'mark is for a mirror, and mode is "{options.mode}", which keeps deleted rows anyway'
        yield ConfigError(f"{name}.deletes", reason, 'Leave it out, or set mode = "mirror".')
    if not 1 <= options.timeout_s <= 86_400:
        yield ConfigError(f"{name}.timeout_s", f"is {options.timeout_s}", "Give a number from 1 to 86,400.")
    if options.url.startswith(_FILES):
        for option in ("schema", "password"):
            if getattr(options, option) not in (None, Secret()):
                yield ConfigError(f"{name}.{option}", "is of no use for a file", "Leave it out.")
