"""A configuration as it is written: file and environment read into one shape, every fault named by its key.

What the values mean is `tailer.config`'s concern. Here is what pydantic knows (types, missing and unknown
keys) and what it does not: where a value came from, which key was probably meant, and that a pipeline called
`orders-eu` is spelled ORDERS_EU in the environment. No value is part of a message: it may be a secret.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from tailer.errors import ConfigError

__all__ = ["FileShape", "Key", "PipelineShape", "Problem", "Reading", "SinkShape", "place", "read_file"]

ENV_PREFIX: Final = "TAILER_"
ENV_DELIMITER: Final = "__"
NO_PIPELINE: Final = "Add a table [pipelines.NAME] with the keys table and sink."
MISSING: Final = {
    "table": 'Add the folder that contains _delta_log, for example table = "/data/orders".',
    "sink": "Add a table [pipelines.NAME.sink] with the key kind.",
    "kind": 'Say which kind of sink it is, for example kind = "delta".',
    "pipelines": NO_PIPELINE,
}

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong at `key`; an empty key is the configuration as a whole."""

    key: Key
    error: ConfigError

    @classmethod
    def at(cls, path: Path, key: Key, reason: str, remedy: str = "") -> "Problem":
        """A problem with what the file at `path`, or the environment in its stead, says under `key`."""
        return cls(key, ConfigError(place(path, key), reason, remedy))

    @property
    def pipeline(self) -> str | None:
        """The pipeline concerned; None where it is none in particular."""
        return self.key[1] if len(self.key) > 1 and self.key[0] == "pipelines" else None


def _as_text(value: object) -> object:
    # TOML has numbers and timestamps of its own; `start = 12` must mean what `start = "12"` means.
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class SinkShape(BaseModel):
    """A sink's table: its kind, and options that only the sink understands."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the kind."""
        return dict(self.model_extra or {})


class PipelineShape(BaseModel):
    """A pipeline's table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: str
    start: Annotated[str, BeforeValidator(_as_text)] = "earliest"
    columns: list[str] = Field(default_factory=list)
    poll_interval_s: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    sink: SinkShape


class FileShape(BaseSettings):
    """The whole file."""

    model_config = SettingsConfigDict(
        extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter=ENV_DELIMITER
    )

    state_table: str | None = None
    drain_s: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    pipelines: dict[str, PipelineShape]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file, and there is nothing else."""
        return _Environment(settings_cls, init_settings()), init_settings


class _Environment(EnvSettingsSource):
    """The variables, with pipelines under the names the file gives them, which no variable could spell."""

    def __init__(self, settings_cls: type[BaseSettings], document: dict[str, Any]) -> None:
        super().__init__(settings_cls)
        self._names: dict[str, str] = {_spelled(name): name for name in _names(document)}

    def __call__(self) -> dict[str, Any]:
        """The overrides in the shape of the file."""
        values = super().__call__()
        overrides = values.get("pipelines")
        if isinstance(overrides, dict):
            values["pipelines"] = {self._named(spelled): value for spelled, value in overrides.items()}
        return values

    def _named(self, spelled: str) -> str:
        if spelled in self._names:
            return self._names[spelled]
        where = f"environment {_variable(('pipelines', spelled))}"
        remedy = _nearest(spelled, self._names) or "The environment only overrides what the file has."
        raise ConfigError(where, f"the file has no pipeline {spelled!r}", remedy)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read: the names of the file's pipelines, and the shape or the reasons why there is none."""

    names: tuple[str, ...]
    shape: FileShape | None
    problems: tuple[Problem, ...]


def read_file(path: Path) -> Reading:
    """Read the file at `path`, overridden by the environment. Nothing is raised: faults are in the result."""
    names: tuple[str, ...] = ()
    try:
        document = _document(path)
        names = tuple(_names(document))
        return Reading(names, FileShape(**document), tuple(_misspelled_variables()))
    except ConfigError as error:
        return Reading(names, None, (Problem((), error),))
    except SettingsError as error:
        return Reading(names, None, (Problem((), ConfigError("environment", str(error))),))
    except ValidationError as invalid:
        faults = (_fault(path, error) for error in invalid.errors(include_input=False))
        return Reading(names, None, tuple(faults))


def place(path: Path, key: Key) -> str:
    """Where an operator finds `key`: the variable that sets it, or else the file."""
    variable = _variable(key)
    if any(name.upper() == variable for name in os.environ):
        return f"environment {variable}"
    return f"{path}: {'.'.join(key)}"


def _nearest(word: str, known: Mapping[str, Any]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        remedy = "Check the path of the configuration."
        raise ConfigError(str(path), f"cannot be read: {reason}", remedy) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        remedy = "In TOML text needs quotes, and a key may appear once."
        raise ConfigError(str(path), f"is not TOML: {error}", remedy) from error


def _names(document: Mapping[str, Any]) -> list[str]:
    pipelines = document.get("pipelines")
    return list(pipelines) if isinstance(pipelines, dict) else []


def _spelled(name: str) -> str:
    return re.sub(r"[-.]", "_", name.lower())


def _variable(key: Key) -> str:
    return ENV_PREFIX + ENV_DELIMITER.join(_spelled(part).upper() for part in key)


def _misspelled_variables() -> Iterator[Problem]:
    # Others use the prefix too (Kubernetes sets TAILER_PORT for a service named tailer): only a near miss is
    # taken for ours.
    for name in sorted(os.environ):
        word = name.lower().removeprefix(ENV_PREFIX.lower()).split(ENV_DELIMITER)[0]
        known = FileShape.model_fields
        if name.upper().startswith(ENV_PREFIX) and word not in known and (remedy := _nearest(word, known)):
            yield Problem((), ConfigError(f"environment {name}", "is not a setting", remedy))


def _fault(path: Path, error: ErrorDetails) -> Problem:
    """One of pydantic's errors in our words."""
    key = tuple(str(part) for part in error["loc"])
    match error["type"]:
        case "extra_forbidden":
            known = PipelineShape.model_fields if len(key) == 3 else FileShape.model_fields
            remedy = _nearest(key[-1], known) or f"Known: {', '.join(known)}."
            return Problem.at(path, key, "unknown key", remedy)
        case "missing":
            return Problem.at(path, key, "is missing", MISSING[key[-1]])
        case "model_type" | "dict_type":
            return Problem.at(path, key, "must be a table")
        case "tuple_type" | "list_type":
            return Problem.at(path, key, "must be a list")
    return Problem.at(path, key, error["msg"].replace("Input should be", "must be"))
