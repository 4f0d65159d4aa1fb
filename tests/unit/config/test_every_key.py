"""Every key of every table of the file: misspelled, missing, given twice, or of another type, it is named.

The tables and their keys are those of the shapes, so a new key is tested as soon as there is one.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tailer.config.options import option_names
from tailer.config.settings import examine
from tailer.config.shapes import FileShape, PipelineShape, SparkShape, StoreShape
from tailer.formats.delta.catalog.options import UnityOptions
from tailer_sinks import stdout
from tailer_sinks.delta import options as delta
from tailer_sinks.files import sink as files
from tailer_sinks.http import options as http
from tailer_sinks.kafka import options as kafka
from tailer_sinks.kafka.clients.settings import ClientSettings

Table = dict[str, Any]
Place = tuple[str, ...]
Section = tuple[Place, type[msgspec.Struct], Table]

SINKS: Final[Mapping[str, tuple[type[msgspec.Struct], Table]]] = {
    "delta": (delta.Options, {"path": "copy"}),
    "files": (files._Options, {"path": "copy"}),
    "http": (http.Options, {"url": "https://h/"}),
    "kafka": (kafka.Options, {"bootstrap_servers": "h:1"}),
    "stdout": (stdout._Options, {}),
}
UNITY: Final = {"kind": "unity", "uri": "http://localhost:1", "table": "main.sales.orders"}
STRANGE: Final[tuple[Any, ...]] = (-1, True, "\0", "~nobody/x", [], [[1]], {"": [{}]})


def sections() -> Iterator[tuple[str, Place, type[msgspec.Struct], Table]]:
    """Yield the name, the place and the shape of each table, in a file where it has the keys that it needs."""
    orders = {"table": "orders", "sink": {"kind": "delta", "path": "copy"}}
    for kind, (shape, options) in SINKS.items():
        file = {"state_table": "state", "pipelines": {"orders": {**orders, "sink": {"kind": kind, **options}}}}
        yield kind, ("pipelines", "orders", "sink"), shape, file
    whole = {"pipelines": {"orders": orders}}
    yield "file", (), FileShape, whole
    yield "pipeline", ("pipelines", "orders"), PipelineShape, whole
    yield "defaults", ("defaults",), PipelineShape, {**whole, "defaults": {}}
    yield "spark", ("spark",), SparkShape, {**whole, "spark": {}}
    yield "store", ("stores", "lake"), StoreShape, {**whole, "stores": {"lake": {"prefix": "s3://lake"}}}
    sink = {"kind": "kafka", "bootstrap_servers": "h:1", "client": {}}
    yield (
        "client",
        ("pipelines", "orders", "sink", "client"),
        ClientSettings,
        {"pipelines": {"orders": {**orders, "sink": sink}}},
    )
    catalog = {"pipelines": {"orders": {**orders, "catalog": UNITY}}}
    yield "unity", ("pipelines", "orders", "catalog"), UnityOptions, catalog


SECTIONS: Final[Mapping[str, Section]] = {name: (place, shape, file) for name, place, shape, file in sections()}


def changed(file: Table, place: Place, key: str, value: Any = None, *, without: str | None = None) -> Table:
    """Return the file with `key` in the table at `place`, and without another key of it."""
    if place:
        return {**file, place[0]: changed(file.get(place[0], {}), place[1:], key, value, without=without)}
    kept = {name: old for name, old in file.items() if name != without}
    return kept if value is None else {**kept, key: value}


def toml(value: Any) -> str:
    """Return a value in TOML, tables on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(each)}" for name, each in value.items()) + "}"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def faults(folder: Path, file: Table) -> dict[str, str]:
    """Return the place and the next step of each fault."""
    path = folder / "tailer.toml"
    path.write_text("".join(f"{json.dumps(name)} = {toml(value)}\n" for name, value in file.items()))
    found = [problem.error for problem in examine(path).problems]
    return {error.where.removeprefix(f"{path}: "): f"{error.reason} | {error.hint}" for error in found}


def keys(shape: type[msgspec.Struct]) -> list[str]:
    """Return the keys of a table; that of a sink or a catalog also has its kind."""
    is_kind = shape in [UnityOptions, *(each for each, _ in SINKS.values())]
    return [*option_names(shape), *(["kind"] if is_kind else [])]


def misspelled(key: str) -> str:
    """Return the key with two letters in the middle swapped."""
    middle = next(at for at in range(len(key) // 2, -1, -1) if key[at] != key[at + 1])
    return key[:middle] + key[middle + 1] + key[middle] + key[middle + 2 :]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_misspelled_key_is_named_with_the_right_one(tmp_path: Path, section: str) -> None:
    place, shape, file = SECTIONS[section]
    for key in keys(shape):
        word = misspelled(key)
        table: Any = file
        for name in place:
            table = table[name]
        found = faults(tmp_path, changed(file, place, word, table.get(key, "x"), without=key))
        assert f"Did you mean {key!r}?" in found[".".join((*place, word))], (key, found)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_missing_key_is_named(tmp_path: Path, section: str) -> None:
    place, shape, file = SECTIONS[section]
    required = {field.encode_name for field in msgspec.structs.fields(shape) if field.required}
    for key in keys(shape):
        where = ".".join((*place, key))
        found = faults(tmp_path, changed(file, place, key, without=key))
        is_missing = (key in required | {"kind", "pipelines"}) and section != "defaults"
        assert (where in found) is is_missing, (key, found)
        assert not is_missing or found[where].startswith("is missing"), found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("section", SECTIONS)
def test_a_value_of_another_type_is_named(tmp_path: Path, section: str) -> None:
    place, shape, file = SECTIONS[section]
    for key in keys(shape):
        where = ".".join((*place, key))
        for value in STRANGE:
            found = faults(tmp_path, changed(file, place, key, value))
            assert all(fault.partition(" | ")[2] for fault in found.values()), (key, value, found)
            assert value != [[1]] or where in found, (key, found)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_key_given_twice_is_named(tmp_path: Path, section: str) -> None:
    place, shape, _ = SECTIONS[section]
    path = tmp_path / "tailer.toml"
    for key in keys(shape):
        head = f"[{'.'.join(place)}]\n" if place else ""
        path.write_text(f"{head}{json.dumps(key)} = 1\n{json.dumps(key)} = 1\n")
        (problem,) = examine(path).problems
        assert problem.error.where == f"{path}: {json.dumps(key)}"
        assert problem.error.reason == f"is given twice, again in line {3 if place else 2}"
        assert problem.error.hint == "Remove one of the two, or write them together."


@pytest.mark.parametrize("section", SECTIONS)
def test_a_key_in_another_style_is_named_with_the_right_one(tmp_path: Path, section: str) -> None:
    place, shape, file = SECTIONS[section]
    for key in filter(lambda name: "_" in name, keys(shape)):
        for word in (key.replace("_", "-"), key.replace("_", "."), key.title().replace("_", "")):
            found = faults(tmp_path, changed(file, place, word, "x"))
            assert f"Did you mean {key!r}?" in found[".".join((*place, word))], (key, found)


def test_a_variable_given_twice_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, file = SECTIONS["pipeline"]
    monkeypatch.setenv("TAILER_DRAIN_S", "1")
    monkeypatch.setenv("tailer_drain_s", "2")
    assert faults(tmp_path, file) == {
        "environment tailer_drain_s": "is there twice, also as TAILER_DRAIN_S | Keep one of the two."
    }


def test_a_variable_for_two_pipelines_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = {"kind": "delta", "path": "a"}
    file = {"pipelines": {"a-b": {"table": "x", "sink": sink}, "a.b": {"table": "y", "sink": {**sink, "path": "b"}}}}
    assert faults(tmp_path, file) == {}
    monkeypatch.setenv("TAILER_PIPELINES__A_B__TABLE", "z")
    (found,) = faults(tmp_path, file).items()
    assert found[0] == "environment TAILER_PIPELINES__A_B"
    assert found[1].startswith("may be any of the pipelines a-b, a.b | Rename one")
