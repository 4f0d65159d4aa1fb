"""The `_last_checkpoint` hint: used if valid, and never needed."""

import json
import logging

import pytest

from tailer.formats.delta.checkpoints.hint import LAST_CHECKPOINT, json_checksum, read_last_checkpoint
from tests.support.cases import cases
from tests.support.cloud.memory_store import MemoryStore


def test_the_protocols_own_example() -> None:
    text = """{"k0":"'v 0'", "checksum": "adsaskfljadfkjadfkj",
        "k1":{"k2": 2, "k3": ["v3", [1, 2], {"k4": "v4", "k5": ["v5", "v6", "v7"]}]}}"""
    assert json_checksum(text.encode()) == "6a92d155a59bf2eecbd4b4ec7fd1f875"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ('{"b": 1, "a": 2}', '{"a":2,"b":1,"checksum":"x"}'),
        ('{"a": 1.50e3}', '{ "a":1.50e3 }'),
        ('{"a": {"checksum": 1}, "checksum": 2}', '{"a": {"checksum": 1}}'),
        ('{"a": [], "b": {}, "c": 1}', '{"c": 1}'),
        ('{"a": "\\u00e9/"}', '{"a": "é/"}'),
    ],
)
def test_equivalent_json_texts_have_one_checksum(text: str, same: str) -> None:
    assert json_checksum(text.encode()) == json_checksum(same.encode())


@cases(
    ("text", "other"),
    [
        ('{"a": 1}', '{"a": 1.0}'),
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": null}', '{"a": "null"}'),
        ('{"a": true}', '{"a": false}'),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": {"0": 1}}', '{"a": [1]}'),
        ('{"a": {"checksum": 1}}', '{"a": {"checksum": 2}}'),
    ],
)
def test_different_json_values_have_different_checksums(text: str, other: str) -> None:
    assert json_checksum(text.encode()) != json_checksum(other.encode())


BROKEN = {
    "empty": b"",
    "torn": b'{"version": 3, "si',
    "not an object": b"[3]",
    "no version": b'{"size": 3}',
    "negative": b'{"version": -1}',
    "too large": b'{"version": 9223372036854775808}',
    "huge": b'{"version": ' + b"9" * 5000 + b"}",
    "text": b'{"version": "3"}',
    "a key twice": b'{"version": 3, "size": 1, "size": 1}',
    "a version twice": b'{"version": 3, "version": 4}',
    "not UTF-8": b'{"version": 3, "x": "\xff"}',
    "half a surrogate pair": b'{"version": 3, "x": "\\ud800 "}',
    "nested without end": b'{"version": 3, "x": ' + b"[" * 100_000,
    "nested deep": b'{"version": 3, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "another checksum": b'{"version": 3, "checksum": "6a92d155a59bf2eecbd4b4ec7fd1f875"}',
    "a checksum that is a number": b'{"version": 3, "checksum": 7}',
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_hint_is_no_hint(name: str, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await store.put(LAST_CHECKPOINT, BROKEN[name])
    with caplog.at_level(logging.WARNING):
        assert await read_last_checkpoint(store) is None
    assert "ignoring _delta_log/_last_checkpoint" in caplog.text


@pytest.mark.anyio
async def test_hints_that_are_sound() -> None:
    store = MemoryStore()
    assert await read_last_checkpoint(store) is None
    await store.put(LAST_CHECKPOINT, b'{"version": 12, "size": 3}')
    assert await read_last_checkpoint(store) == 12
    hint = {"version": 13, "x": [1.5, {"y": None}], "checksum": ""}
    hint["checksum"] = json_checksum(json.dumps(hint).encode())
    await store.put(LAST_CHECKPOINT, json.dumps(hint).encode())
    assert await read_last_checkpoint(store) == 13
