"""Read the configuration file and the environment into shapes; report every fault by its key.

`tailer.config.settings` interprets the values. This module finds unknown and missing keys and wrong types, and adds the
origin of a value and the spelling of names in the environment: the pipeline `orders-eu` is ORDERS_EU there. Every table
of the file is validated on its own, so that one fault does not hide the next. Messages never contain values, which may
be secrets.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from tailer.config.options import converted, faults_of, former_secret, option_names
from tailer.config.shapes import MISSING, FileShape, PipelineShape, SparkShape, StoreShape
from tailer.errors import ConfigError, did_you_mean
from tailer.stores.secrets import WAYS

__all__ = ["Key", "PipelineTable", "Problem", "Reading", "digest_of", "place", "read_file"]

ENV_PREFIX: Final = "TAILER_"
ENV_DELIMITER: Final = "__"
_PATH: Final = "Check the path of the configuration (--config)."
_JSON_AT_THE_TOP: Final = frozenset(
    {
        *("drain_s", "hung_s", "standby_after_s", "read_ahead_bytes", "reload_on_change"),
        *("spark", "stores", "catalogs", "defaults", "pipelines"),
    }
)
# Of tomllib, which names no key; the beginning of a statement of TOML; and the line in the parser's text.
_CLASH: Final = re.compile("Cannot (overwrite|declare|mutate)")
_STATEMENT: Final = re.compile(r"""\s*(?:\[\[?(?P<table>[^]]+)]|(?P<key>(?:[\w.\s-]|"[^"]*"|'[^']*')+?)\s*=)""")
_AT_LINE: Final = re.compile(r"at line (\d+)")
# For keys that have no default.
STAND_INS: Final[Mapping[str, Any]] = {"table": "unsound", "sink": {"kind": "unsound"}, "prefix": "unsound"}

Key = tuple[str, ...]
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault at `key`. An empty key stands for the configuration as a whole."""

    key: Key
    error: ConfigError

    @classmethod
    def at(cls, path: Path, key: Key, reason: str, remedy: str = "") -> "Problem":
        """Make the problem of `key` in the file at `path`, or in the environment that overrides it."""
        return cls(key, ConfigError(place(path, key), reason, remedy))

    @property
    def pipeline(self) -> str | None:
        """The pipeline concerned; None if it is no single one."""
        return self.key[1] if len(self.key) > 1 and self.key[0] == "pipelines" else None


def _as_text(value: object) -> object:
    # TOML has its own numbers and timestamps; `start = 12` must mean the same as `start = "12"`.
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


@dataclass(frozen=True, slots=True)
class PipelineTable:
    """A pipeline's table as it was read: its shape, the keys that are given, and those with a wrong value."""

    shape: PipelineShape
    given: frozenset[str]
    unsound: frozenset[str]


@dataclass(slots=True, kw_only=True)
class Reading:
    """The result of reading: the names of the file's pipelines, the shapes, and their faults.

    `unsound`: the keys at the top of the file with a wrong value. In a shape, such keys have their default or a
    stand-in, so that one fault does not hide the next. `defaults`: the sound keys of the table [defaults].
    """

    names: tuple[str, ...] = ()
    file: FileShape | None = None
    spark: SparkShape | None = None
    stores: dict[str, StoreShape] = field(default_factory=dict)
    pipelines: dict[str, PipelineTable] = field(default_factory=dict)
    unsound: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def origin(self, key: Key) -> Key:
        """Return the key that sets the value of a pipeline's `key`: it may be one of the table [defaults]."""
        own = None if self.file is None else self.file.pipelines
        inherited = not _has(own, key[1:]) and _has(self.defaults, key[2:])
        return ("defaults", *key[2:]) if key[0] == "pipelines" and key[2:] and inherited else key


def read_file(path: Path) -> Reading:
    """Read the file at `path`, overridden by the environment. Faults are in the result; nothing is raised."""
    reading = Reading()
    try:
        document = _document(path)
        pipelines = document.get("pipelines")
        reading.names = tuple(pipelines) if isinstance(pipelines, dict) else ()
        reading.problems += _misspelled_variables()
        document = _merge(document, _overrides(reading.names, reading.problems))
    except ConfigError as error:
        reading.problems.append(Problem((), error))
        return reading
    reading.file, reading.unsound = _validate(FileShape, path, (), document, reading.problems)
    if reading.file is not None:
        reading.spark, _ = _validate(SparkShape, path, ("spark",), reading.file.spark, reading.problems)
        for name, table in reading.file.stores.items():
            store, unsound = _validate(StoreShape, path, ("stores", name), table, reading.problems)
            if store is not None and not unsound:
                reading.stores[name] = store
        reading.defaults = _defaults(path, reading.file.defaults, reading.problems)
    tables = reading.file.pipelines if reading.file is not None else document.get("pipelines")
    for name, table in tables.items() if isinstance(tables, dict) else ():
        whole = _inherit(reading.defaults, table) if isinstance(table, dict) else table
        if isinstance(whole, dict) and "start" in whole:
            whole["start"] = _as_text(whole["start"])
        shape, unsound = _validate(PipelineShape, path, ("pipelines", name), whole, reading.problems)
        if shape is not None:
            reading.pipelines[name] = PipelineTable(shape, frozenset(table) - unsound, unsound)
    return reading


def _has(table: Any, key: Key) -> bool:
    for name in key:
        if not isinstance(table, Mapping) or name not in table:
            return False
        table = table[name]
    return True


def _defaults(path: Path, table: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the sound keys of the table [defaults]. It needs no key, and may not have a table."""
    if "start" in table:
        table = {**table, "start": _as_text(table["start"])}
    sink = table.get("sink", {})
    whole = {**STAND_INS, **table, "sink": {**STAND_INS["sink"], **sink} if isinstance(sink, dict) else sink}
    whole.pop("prefix")
    faults = {fault.where: fault for fault in faults_of(whole, PipelineShape)}
    if "table" in table:
        faults["table"] = ConfigError("table", "cannot be the same for all", "Set it in each [pipelines.NAME].")
    problems += [Problem.at(path, ("defaults", name), fault.reason, fault.remedy) for name, fault in faults.items()]
    return {name: value for name, value in table.items() if name not in faults}


def _inherit(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `over` and those of `under` beside them. A sink of another kind inherits nothing."""
    merged = {**under, **over}
    for name in under.keys() & over.keys():
        old, new = under[name], over[name]
        if isinstance(old, dict) and isinstance(new, dict):
            is_other = "kind" in new and new["kind"] != old.get("kind", new["kind"])
            merged[name] = new if is_other or _is_place(old, new) else _inherit(old, new)
    return merged


def digest_of(path: Path) -> bytes:
    """Return what distinguishes the content of the file at `path` from any other; empty if it cannot be read."""
    try:
        return sha256(path.read_bytes()).digest()
    except OSError:
        return b""


def place(path: Path, key: Key) -> str:
    """Return the place of `key` for an error: the variable that sets it, or else the file."""
    variable = _variable(key)
    if any(name.upper() == variable for name in os.environ):
        return f"environment {variable}"
    return f"{path}: {'.'.join(key)}"


def _document(path: Path) -> dict[str, Any]:
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(str(path), f"cannot be read: {reason}", _PATH) from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "is not TOML: not UTF-8 text", _PATH) from error
    except tomllib.TOMLDecodeError as error:
        if _CLASH.match(str(error)) and (twice := _given_twice(text, str(error))) is not None:
            line, name = twice
            remedy = "Remove one of the two, or write them together."
            raise ConfigError(f"{path}: {name}", f"is given twice, again in line {line}", remedy) from error
        remedy = "In TOML, text needs quotes and a key may appear only once."
        raise ConfigError(str(path), f"is not TOML: {error}", remedy) from error


def _given_twice(text: str, error: str) -> tuple[int, str] | None:
    """Return the line, from 1, and the key or table of the statement that `error` is about; None: it is not clear."""
    lines, place = text.splitlines(), _AT_LINE.search(error)
    # A value may have several lines: everything before its first one is TOML.
    for number in range(len(lines) if place is None else int(place[1]), 0, -1):
        with suppress(tomllib.TOMLDecodeError):
            tomllib.loads("\n".join(lines[: number - 1]))
            statement = _STATEMENT.match(lines[number - 1])
            return None if statement is None else (number, statement["key"] or statement["table"])
    return None


def _overrides(names: tuple[str, ...], problems: list[Problem]) -> dict[str, Any]:
    """Return the values of the environment in the shape of the file, with the file's names of pipelines."""
    values = _variables()
    if isinstance(values.get("pipelines"), str):
        del values["pipelines"]
        where, remedy = _variable(("pipelines",)), f"Set key by key: {_variable(('pipelines', 'name', 'table'))}."
        problems.append(Problem((), ConfigError(f"environment {where}", "is not a table in JSON", remedy)))
    spelled = {_spelled(name): name for name in names}
    pipelines = values.get("pipelines")
    if not isinstance(pipelines, dict):
        return values
    for word in pipelines.keys() - spelled.keys():
        remedy = did_you_mean(word, spelled) or "The environment can only override pipelines that the file has."
        where = f"environment {_variable(('pipelines', word))}"
        problems.append(Problem((), ConfigError(where, f"the file has no pipeline {word!r}", remedy)))
    for word in pipelines:
        if len(alike := [name for name in names if _spelled(name) == word]) > 1:
            where = f"environment {_variable(('pipelines', word))}"
            reason = f"may be any of the pipelines {', '.join(alike)}"
            problems.append(Problem((), ConfigError(where, reason, "Rename one of them, or set the key in the file.")))
    values["pipelines"] = {spelled[word]: value for word, value in pipelines.items() if word in spelled}
    return values


def _variables() -> dict[str, Any]:
    """Return the variables of the environment that are keys of the file, in its shape and in lower case.

    Raises `ConfigError` for one that is not UTF-8, and for one that is there twice, in other case.
    """
    values: dict[str, Any] = {}
    before = ""
    keys = option_names(FileShape)
    # A table comes before its keys, which are longer names.
    for variable in sorted((name for name in os.environ if name.upper().startswith(ENV_PREFIX)), key=str.upper):
        *tables, last = variable[len(ENV_PREFIX) :].lower().split(ENV_DELIMITER)
        if (tables or [last])[0] not in keys:
            continue
        table = values
        for depth, name in enumerate(tables, 1):
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                whole = _variable(tuple(tables[:depth]))
                raise ConfigError(f"environment {variable}", f"is a part of {whole}, also set", "Keep one of the two.")
            table = inner
        if variable.upper() == before.upper():
            raise ConfigError(f"environment {variable}", f"is there twice, also as {before}", "Keep one of the two.")
        before, text = variable, os.environ[variable]
        # A lone surrogate stands for a byte that could not be decoded.
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise ConfigError(f"environment {variable}", "is not UTF-8 text", "Set it again, in UTF-8.")
        table[last] = text
        if tables or last in _JSON_AT_THE_TOP:
            with suppress(msgspec.DecodeError):  # other text is refused later if it must be a value
                table[last] = msgspec.json.decode(text)
    return values


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged, spelled = dict(under), {_spelled(name): name for name in under}
    for name, value in over.items():
        # The environment has no dots and hyphens in names.
        key = name if name in under else spelled.get(name, name)
        old = merged.get(key)
        merged[key] = value
        if isinstance(old, dict) and isinstance(value, dict) and not _is_place(old, value):
            merged[key] = _merge(old, value)
    return merged


def _is_place(*tables: Mapping[str, Any]) -> bool:
    """Return whether all tables give a secret, which has one place: one of them replaces another."""
    return all(table and table.keys() <= WAYS.keys() for table in tables)


def _validate(
    shape: type[S], path: Path, key: Key, table: Any, problems: list[Problem]
) -> tuple[S | None, frozenset[str]]:
    """Return `table` as a `shape` without its wrong values, or None if it is not a table, and the keys of these."""
    if not isinstance(table, dict):
        problems.append(Problem.at(path, key, "must be a table", f"Begin it with [{'.'.join(key)}]."))
        return None, frozenset()
    faults: dict[Key, ConfigError] = {(fault.where,): fault for fault in faults_of(table, shape)}
    faults |= {(name, fault.where): fault for name, fault in _faults_of_kinds(table, shape)}
    problems += [Problem.at(path, (*key, *where), fault.reason, fault.remedy) for where, fault in faults.items()]
    missing = {field.encode_name for field in msgspec.structs.fields(shape) if field.required} - table.keys()
    unsound = (missing | {where[0] for where in faults}) & set(option_names(shape))
    sound = {name: value for name, value in table.items() if name in option_names(shape) and name not in unsound}
    stand_ins = {name: STAND_INS[name] for name in unsound & STAND_INS.keys()}
    return converted(sound | stand_ins, shape), frozenset(unsound)


def _faults_of_kinds(table: Mapping[str, Any], shape: type[msgspec.Struct]) -> Iterator[tuple[str, ConfigError]]:
    """Yield the names and faults of the tables of a sink and a catalog, of which only the kind is known here."""
    for name in ("sink", "catalog") if shape is PipelineShape else ():
        inner = table.get(name)
        if isinstance(inner, dict) and "kind" not in inner:
            near = next(filter(partial(did_you_mean, names=("kind",)), inner), None)
            if near is None:
                yield name, ConfigError("kind", "is missing", MISSING[f"{name}.kind"])
            else:
                yield name, ConfigError(near, "no such option", did_you_mean(near, ("kind",)))
        elif isinstance(inner, dict) and not isinstance(inner["kind"], str):
            yield name, ConfigError("kind", "must be text", "Write it in quotes.")


def _misspelled_variables() -> Iterator[Problem]:
    # Others use the prefix too (Kubernetes sets TAILER_PORT for a service named tailer), so only a name that is
    # similar to ours is a fault.
    for name in sorted(os.environ):
        if not name.upper().startswith(ENV_PREFIX):
            continue
        word = name.lower().removeprefix(ENV_PREFIX.lower()).partition(ENV_DELIMITER)[0]
        if (former := former_secret(word, FileShape)) is not None:
            yield Problem((), ConfigError(f"environment {name}", former.reason, former.remedy))
            continue
        near = get_close_matches(word, option_names(FileShape), n=1)
        if near and word != near[0]:
            remedy = f"Did you mean {_variable((near[0],))}?"
            yield Problem((), ConfigError(f"environment {name}", "is not a setting", remedy))


def _spelled(name: str) -> str:
    return re.sub(r"[-.]", "_", name.lower())


def _variable(key: Key) -> str:
    return ENV_PREFIX + ENV_DELIMITER.join(_spelled(part).upper() for part in key)
