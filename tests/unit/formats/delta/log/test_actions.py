"""A commit file is parsed into typed actions, or raises an error that names the line."""

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.errors import LogCorrupt
from tailer.formats.delta.log.actions import (
    CHUNK_BYTES,
    AddFile,
    Commit,
    DeletionVector,
    FileAction,
    parse_commit,
    scan_commit,
    scan_state,
)
from tests.support.cases import cases
from tests.support.tables.log_files import add, cdc, commit_info, metadata, protocol, remove

PATH = "_delta_log/00000000000000000007.json"
VECTOR = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 34, "cardinality": 2}


def parse(*lines: dict[str, Any] | str) -> Commit:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return parse_commit(text.encode(), "t", PATH, 7, 1234)


def without(action: dict[str, Any], name: str) -> dict[str, Any]:
    return {kind: {key: value for key, value in fields.items() if key != name} for kind, fields in action.items()}


def test_every_kind_of_action() -> None:
    operation = commit_info(operation="MERGE", operationMetrics={"numOutputRows": "3"}, inCommitTimestamp=5)
    commit = parse(
        operation,
        protocol(),
        metadata(),
        add("a", VECTOR),
        remove("b"),
        cdc("c"),
        {"txn": {"appId": "x", "version": 9}},
    )
    assert (commit.version, commit.modified_ms) == (7, 1234)
    assert commit.adds == (AddFile("a", {}, 1, True, 1, DeletionVector("u", "x", 34, 2, 1)),)
    assert (commit.removes[0].path, commit.cdcs[0].path) == ("b", "c")
    assert commit.protocol is not None
    assert commit.metadata is not None
    assert commit.info is not None
    assert (commit.info.operation_name, commit.info.in_commit_timestamp) == ("MERGE", 5)
    assert commit.txns[0].version == 9


@cases("line", ["{}", '{"domainMetadata":{"domain":"d"}}', '{"new":[1,{"add":2}]}', '{"add":null}', "", "   ", "\r"])
def test_unknown_actions_and_fields_are_ignored(line: str) -> None:
    assert [file.path for file in parse(line, add("a"), line, '{"commitInfo":{"operation":7,"x":[{}]}}').adds] == ["a"]


@cases(
    "line",
    [
        "{",
        "null",
        "[]",
        '{"add":{"path":"a","partitionValues":{},"size":1,"dataCha',
        '{"add":{"path":"\\ud800","partitionValues":{},"size":1,"dataChange":true}}',
        '{"unknown":' + "[" * 5000 + "]" * 5000 + "}",
        without(add("a"), "dataChange"),
        without(add("a"), "path"),
        without(add("a"), "partitionValues"),
        without(remove("a"), "dataChange"),
        without(metadata(), "partitionColumns"),
        add("a", size="1"),
        add("a", dataChange="true"),
        add("a", partitionValues={"p": 1}),
        add("a", VECTOR | {"sizeInBytes": -1}),
        add("a", VECTOR | {"sizeInBytes": 2**31}),
        add("a", VECTOR | {"offset": -1}),
        add("a", VECTOR | {"cardinality": -1}),
        add("a", VECTOR | {"cardinality": 2**63}),
        add("a", without({"v": VECTOR}, "storageType")["v"]),
        commit_info(inCommitTimestamp="1"),
        commit_info(inCommitTimestamp=-1),
        commit_info(inCommitTimestamp=10**15),
    ],
)
def test_a_malformed_action_names_its_line(line: dict[str, Any] | str) -> None:
    with pytest.raises(LogCorrupt) as caught:
        parse(add("b"), "", line)
    assert (caught.value.path, caught.value.version, caught.value.line) == (PATH, 7, 3)


def test_a_key_that_is_not_utf8_is_malformed_and_no_unknown_action() -> None:
    lines = b'{"txn":{"appId":"x","version":1}}\n{"a\xbedd":{}}\n'
    with pytest.raises(LogCorrupt) as caught:
        parse_commit(lines, "t", PATH, 7, 1000)
    assert caught.value.line == 2
    with pytest.raises(LogCorrupt):
        scan_state(BytesIO(lines), "t", PATH, 7)


@pytest.mark.parametrize("data", [b"", b"\n \n", b'{"add":"\xff"}', b"\xef\xbb\xbf{}", b"\x00"])
def test_a_file_without_json_lines(data: bytes) -> None:
    with pytest.raises(LogCorrupt):
        parse_commit(data, "t", PATH, 7, 0)


@pytest.mark.parametrize("twice", [protocol(), metadata(), commit_info()])
def test_actions_allowed_once_per_commit(twice: dict[str, Any]) -> None:
    with pytest.raises(LogCorrupt, match=r"2 (protocol|metaData|commitInfo) actions"):
        parse(twice, add("a"), twice)


def test_a_commit_cut_short_is_corrupt_wherever_the_cut_is() -> None:
    """A cut between two lines is not visible here; the reader checks whether the file grows (`test_commit_file`)."""
    text = "\n".join(json.dumps(add(name)) for name in "abc")
    whole = {text.index("\n"), text.rindex("\n"), text.index("\n") + 1, text.rindex("\n") + 1}
    for cut in set(range(1, len(text))) - whole:
        with pytest.raises(LogCorrupt):
            parse(text[:cut])


@pytest.mark.parametrize("chunk", [1, 7, 64, 2**20])
def test_the_size_of_a_chunk_does_not_matter(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Nor do blank lines, long lines, a last line without a newline, or an action spread over several lines."""
    long = add("x" * 500)
    whole = json.dumps(long).replace(":", ":\n", 1)
    texts = [json.dumps(add("a")), "", whole, "  ", json.dumps(remove("b")), json.dumps(cdc("c"))]
    monkeypatch.setattr("tailer.formats.delta.log.actions.CHUNK_BYTES", chunk)
    for end in ("", "\n", "\r\n", "\n\n"):
        data = ("\n".join(texts) + end).encode()
        commit = parse_commit(data, "t", PATH, 7, 0)
        assert [file.path for file in commit.adds] == ["a", "x" * 500]
        assert (commit.removes[0].path, commit.cdcs[0].path) == ("b", "c")
    with pytest.raises(LogCorrupt) as caught:
        parse_commit("\n".join([*texts, "", '{"add":7}', *texts]).encode(), "t", PATH, 7, 0)
    assert caught.value.line is not None
    with pytest.raises(LogCorrupt, match="the commit file is empty"):
        parse_commit(b"\n" * 20, "t", PATH, 7, 0)


def test_a_malformed_line_is_counted_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailer.formats.delta.log.actions.CHUNK_BYTES", 100)
    with pytest.raises(LogCorrupt) as caught:
        parse(*[add("a")] * 30, "{", *[add("b")] * 30)
    assert caught.value.line == 31


def test_only_what_is_asked_for_is_kept() -> None:
    lines = "\n".join(json.dumps(line) for line in (metadata(), add("a"), add("b"), remove("c"), cdc("d")))
    asked: list[str] = []

    def keep(file: FileAction) -> bool:
        asked.append(file.path)
        return file.path == "b"

    commit = scan_commit(BytesIO(lines.encode()), "t", PATH, 7, 0, keep)
    assert asked == ["a", "b", "c", "d"]
    assert [file.path for file in commit.adds] == ["b"]
    assert (commit.removes, commit.cdcs, commit.metadata is None) == ((), (), False)


def test_unwanted_file_actions_are_not_held(tmp_path: Path) -> None:
    """A commit of any length is parsed in the memory of a chunk (invariant 7)."""
    path = tmp_path / "commit"
    with path.open("w") as file:
        file.writelines(json.dumps(add(f"part-{number}", stats="x" * 200)) + "\n" for number in range(50_000))
    assert path.stat().st_size > 12 * CHUNK_BYTES
    tracemalloc.start()
    try:
        with path.open("rb") as data:
            commit = scan_commit(data, "t", PATH, 7, 0, lambda _: False)
        assert tracemalloc.get_traced_memory()[1] < 8 * CHUNK_BYTES
    finally:
        tracemalloc.stop()
    assert commit.adds == ()


@cases(
    ("line", "reason"),
    [
        ('{"x":' + "[" * 100_000 + "]" * 100_000 + "}", "its JSON is nested too deeply"),
        ('{"x":' + '{"a":' * 5000 + "1" + "}" * 5001, "its JSON is nested too deeply"),
        (json.dumps(add("\ud800")), "an unpaired surrogate"),
        (json.dumps(add("a", stats="x\udc00y")), "an unpaired surrogate"),
        (json.dumps(commit_info(operation="\ud83d\ud83d")), "an unpaired surrogate"),
        ('{"x":"\\ud83', "malformed"),
        ('{"x":"\\ud83d', "malformed"),
        ('{"add":7}', "Expected"),
    ],
)
def test_why_a_line_cannot_be_read(line: str, reason: str) -> None:
    with pytest.raises(LogCorrupt, match=reason) as caught:
        parse(add("a"), line)
    assert caught.value.line == 2
    assert "recursion" not in str(caught.value)


@given(
    st.binary(max_size=200) | st.text(alphabet='{}[]":,adremov truefalsn0123456789\n\\u', max_size=80).map(str.encode)
)
def test_any_bytes_are_a_commit_or_corrupt(data: bytes) -> None:
    with suppress(LogCorrupt):
        parse_commit(data, "t", PATH, 7, 0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ACTIONS = st.sampled_from([add("a", VECTOR), remove("b"), cdc("c"), metadata(), protocol(), commit_info(operation="x")])


@given(ACTIONS, st.data())
def test_an_action_with_any_one_field_changed_is_read_or_corrupt(action: dict[str, Any], data: st.DataObject) -> None:
    changed: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(action))
    (fields,) = changed.values()
    fields[data.draw(st.sampled_from([*sorted(fields), "deletionVector"]))] = data.draw(JSON)
    with suppress(LogCorrupt):
        parse(changed)


# Lines in which an action is named but not taken, or taken but not named as usual, and broken ones.
HOSTILE = st.sampled_from(
    [
        *(json.dumps(line) for line in (protocol(), metadata(), metadata(table_id="other"), add("a"), commit_info())),
        json.dumps(protocol()).replace("protocol", "\\u0070rotoco\\u006c"),
        json.dumps(metadata()).replace("metaData", "meta\\u0044ata"),
        json.dumps(metadata()).replace('": ', '"\n:\n'),
        json.dumps(add('{"metaData":{"id":"no"}}', stats='{"protocol":{}}')),
        json.dumps(commit_info(operation={"protocol": protocol(), "metaData": [metadata()]})),
        '{"domainMetadata":{"protocol":{"minReaderVersion":99,"minWriterVersion":99}}}',
        '{"protocol":null,"metaData":null,"add":null}',
        '{"protocol":{"minReaderVersion":1,"minWriterVersion":2},"metaData":null,"protocol":null}',
        '{"protocol":null,"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["new"]}}',
        '{"protocol":{}}',
        '{"metaData":7}',
        '{"add":{"path":"a"}}',
        '{"commitInfo":{"inCommitTimestamp":-1}}',
        '{"Protocol":{"minReaderVersion":1,"minWriterVersion":2}}',
        '{"x":"\\ud83d"}',
        '"protocol"',
        "{}",
        "",
        "  ",
        "\r",
        "{",
        "\ufeff{}",
    ]
)


def state_or_error(data: bytes, scan: Callable[[BytesIO], object]) -> object:
    try:
        return scan(BytesIO(data))
    except LogCorrupt as error:
        return error.path, error.version, error.line, str(error)


@given(st.lists(HOSTILE, max_size=6), st.sampled_from(["\n", "\r\n", " ", ""]), st.binary(max_size=3), st.data())
def test_the_state_alone_is_that_of_the_whole_commit(
    lines: list[str], between: str, more: bytes, data: st.DataObject
) -> None:
    whole = between.join(lines).encode() + more
    text = whole[: data.draw(st.integers(len(whole) // 2, len(whole)))]

    def of_commit(file: BytesIO) -> object:
        commit = scan_commit(file, "t", PATH, 7, 0)
        return commit.protocol, commit.metadata

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailer.formats.delta.log.actions.CHUNK_BYTES", data.draw(st.sampled_from([1, 50, 200, 2**20])))
        found = state_or_error(text, lambda file: scan_state(file, "t", PATH, 7))
    assert found == state_or_error(text, of_commit)
