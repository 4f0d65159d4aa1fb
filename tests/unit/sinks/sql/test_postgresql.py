"""Rows as PostgreSQL's COPY reads them, without a server."""

from datetime import UTC, date, datetime
from decimal import Decimal
from socket import create_server
from struct import pack, unpack
from threading import Thread
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict

from tailer.errors import SinkAccessRefused, SinkError, SinkRejected, SinkUnavailable
from tailer_sinks.sql.databases.postgresql import PostgreSql, prepared
from tailer_sinks.sql.databases.postgresql_copy import copied
from tests.support.cases import cases


@cases(
    ("kind", "value", "text"),
    [
        (pa.bool_(), True, "true"),
        (pa.int64(), -(2**63), "-9223372036854775808"),
        (pa.float32(), 0.1, "0.1"),
        (pa.float64(), -0.0, "-0"),
        (pa.decimal128(5, 2), Decimal("-1.50"), "-1.50"),
        (pa.string(), "a\\b\tc\nd\re", r"a\\b\tc\nd\re"),
        (pa.string(), r"\N", r"\\N"),
        (pa.string(), "", ""),
        (pa.binary(), b"\x00\xff", r"\\x00ff"),
        (pa.date32(), date(1970, 1, 1), "J2440588"),
        (pa.timestamp("us", "UTC"), datetime(1969, 12, 31, 23, 59, 59, 1, UTC), "J2440587 23:59:59.000001"),
        (pa.list_(pa.string()), ["a\\"], r'["a\\\\"]'),
        (pa.string(), None, r"\N"),
    ],
)
def test_texts(kind: pa.DataType, value: Any, text: str) -> None:
    rows = pa.record_batch({"before": pa.array([1, 2]), "v": pa.array([value, None], kind)}).slice(0, 2)
    assert copied("orders", rows).to_pybytes().decode() == f"1\t{text}\n2\t\\N\n"
    assert copied("orders", rows.slice(1)).to_pybytes() == b"2\t\\N\n"


def test_slices_of_bytes() -> None:
    rows = pa.record_batch({"v": pa.array([b"a", None, b"bc", b""], pa.binary())})
    assert copied("orders", rows.slice(1, 3)).to_pybytes() == b"\\N\n\\\\x6263\n\\\\x\n"


def test_a_column_with_the_character_that_texts_cannot_have() -> None:
    with pytest.raises(SinkRejected, match=r"column v has a text with the character U\+0000"):
        copied("orders", pa.record_batch({"v": pa.array(["ok", "a\0"])}))
    with pytest.raises(SinkRejected, match=r"column v has a text with the character U\+0000"):
        copied("orders", pa.record_batch({"v": pa.array([["a\\\0"]])}))
    assert b"u0000" in copied("orders", pa.record_batch({"v": pa.array([["\\u0000"]])})).to_pybytes()


def test_types_that_it_lacks() -> None:
    database = PostgreSql("orders", "postgresql://db/shop", lambda: None, None)
    assert database.type_of(pa.timestamp("ns")) is None
    assert database.type_of(pa.time64("ns")) is None
    assert database.type_of(pa.decimal128(38, 18)) == "numeric(38, 18)"


def test_parameters_beside_any_names() -> None:
    assert prepared('SELECT "a?%" FROM t WHERE x = ?', [1]) == (b'SELECT "a?%%" FROM t WHERE x = %s', [1])
    assert prepared('SELECT "a?%"', []) == (b'SELECT "a?%"', None)


def test_what_the_url_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except for the settings without which values would be others."""
    given: list[str] = []
    monkeypatch.setattr(psycopg, "connect", lambda conninfo, **_: given.append(conninfo))
    url = "postgresql://u@h/shop?connect_timeout=3&options=-csearch_path%3Dtail&client_encoding=latin1"
    PostgreSql("orders", url, lambda: "secret", None).connect()
    found = conninfo_to_dict(given[0])
    assert (found["connect_timeout"], found["client_encoding"], found["keepalives_count"]) == ("3", "utf8", "3")
    assert found["options"] == "-csearch_path=tail -c timezone=UTC -c datestyle=ISO -c extra_float_digits=1"
    assert (found["password"], found["application_name"]) == ("secret", "lake-tailer")


@cases(
    ("severity", "text", "after_password", "error"),
    [
        ("FATAL", 'password authentication failed for user "u"', True, SinkAccessRefused),
        ("FATAL", "Passwort-Authentifizierung für Benutzer »u« fehlgeschlagen", True, SinkAccessRefused),
        ("FATAL", "autenticazione con password fallita per l'utente u", True, SinkAccessRefused),
        ("ВАЖНО", 'пользователь "u" не прошёл проверку подлинности (по паролю)', True, SinkAccessRefused),
        ("FATAL", "too many connections for role u", True, SinkUnavailable),
        ("FATAL", "das Datenbanksystem startet", False, SinkUnavailable),
    ],
)
def test_a_refused_password_is_known_in_any_language(
    severity: str, text: str, after_password: bool, error: type[SinkError]
) -> None:
    def message(kind: bytes, body: bytes) -> bytes:
        return kind + pack("!i", len(body) + 4) + body

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(unpack("!i", connection.recv(4))[0] - 4)
            if after_password:
                connection.sendall(message(b"R", pack("!i", 3)))  # the password, please
                assert b"open-sesame" in connection.recv(1000)
            connection.sendall(message(b"E", f"S{severity}\0M{text}\0\0".encode()))

    with create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=answer)
        thread.start()
        url = f"postgresql://u@127.0.0.1:{server.getsockname()[1]}/shop?sslmode=disable&gssencmode=disable"
        with pytest.raises(SinkError) as caught:
            PostgreSql("orders", url, lambda: "open-sesame", None, "Correct password.").connect()
        thread.join()
    assert type(caught.value) is error
    assert text in caught.value.reason
