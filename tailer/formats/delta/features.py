"""Supported, ignored and refused table features (PROTOCOL.md, "Table Features", "Protocol Evolution").

`FEATURES` has one row for every feature with a specification or a proposal, and for every column type without a feature
of its own. The protocol is checked at every version, because it may be upgraded or downgraded at any version. Reader
features marked as refused, and unknown ones, are refused. Writer features do not concern a reader and are never
refused, known or not: their answer here is documentation.
"""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tailer.errors import LogCorrupt, UnsupportedFeature
from tailer.formats.delta.log.actions import Protocol

__all__ = [
    "FEATURES",
    "READER_FEATURES",
    "Answer",
    "Scope",
    "check_protocol",
    "maps_columns",
    "type_refusal",
]


class Scope(StrEnum):
    """Programs that must support a feature."""

    READER = "readers and writers"
    WRITER = "writers only"
    TYPE = "readers and writers of the column type, which no feature announces"


class Answer(StrEnum):
    """Treatment of a table that has the feature."""

    SUPPORTED = "supported"  # its rules are followed
    IGNORED = "ignored"  # it requires nothing of a reader of changes
    REFUSED = "refused"  # the pipeline stops with its name


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the table. `why`: how it is supported, why it may be ignored, or why it is refused."""

    name: str
    scope: Scope
    answer: Answer
    why: str


_CATALOG: Final = "catalogManaged"
_ASK_CATALOG: Final = "Follow it with a pipeline that has a table [pipelines.NAME.catalog]: see docs/delta.md."
_MAPPING: Final = "columnMapping"
_BY_CATALOG: Final = "a catalog ratifies its commits; the files alone may miss some"
_WIDENING: Final = "old files hold narrower types; their values are cast up"
_VARIANT: Final = "change rows hold Variants as they are encoded"
_SHREDDED: Final = "shredded Variants are put together again, file by file"
_GEOSPATIAL: Final = "lake-tailer does not decode geometry and geography values"
_ICEBERG_LIMITS: Final = "it restricts writers to what an Iceberg reader can read"
_CHECKED_ON_WRITE: Final = "writers check or compute values before writing; files hold the result"
_TEXT_ORDER: Final = "strings are carried unchanged, keys compare bytes, and conditions on these columns are refused"
_REDIRECT: Final = "the table has moved, and the format of its new location is not settled"


def _reader(name: str, answer: Answer, why: str) -> Feature:
    return Feature(name, Scope.READER, answer, why)


def _writer(name: str, answer: Answer, why: str) -> Feature:
    return Feature(name, Scope.WRITER, answer, why)


FEATURES: Final = (
    _reader(_MAPPING, Answer.SUPPORTED, "columns are found by field id or physical name"),
    _reader("deletionVectors", Answer.SUPPORTED, "they select rows; two vectors of one file are compared"),
    _reader("timestampNtz", Answer.SUPPORTED, "a type of its own, without a time zone"),
    _reader("timestampWithoutTimezone", Answer.SUPPORTED, "the old name of timestampNtz"),
    _reader("v2Checkpoint", Answer.SUPPORTED, "state is read from them"),
    _reader("vacuumProtocolCheck", Answer.SUPPORTED, "a reader need only know it"),
    _reader("typeWidening", Answer.SUPPORTED, _WIDENING),
    _reader("typeWidening-preview", Answer.SUPPORTED, _WIDENING),
    _reader("variantType", Answer.SUPPORTED, _VARIANT),
    _reader("variantType-preview", Answer.SUPPORTED, _VARIANT),
    _reader("variantShredding", Answer.SUPPORTED, _SHREDDED),
    _reader("variantShredding-preview", Answer.SUPPORTED, _SHREDDED),
    _reader(_CATALOG, Answer.REFUSED, f"{_BY_CATALOG}; configure the pipeline's catalog"),
    _reader("catalogOwned-preview", Answer.REFUSED, f"{_BY_CATALOG}; this preview of catalogManaged has other rules"),
    _reader("geospatial", Answer.REFUSED, _GEOSPATIAL),
    _reader("geospatial-dev", Answer.REFUSED, _GEOSPATIAL),
    _reader("adaptiveMetadata-preview", Answer.REFUSED, "commits may keep their file changes outside the log"),
    _reader("redirectReaderWriter-preview", Answer.REFUSED, _REDIRECT),
    _reader("timestampNanos", Answer.REFUSED, "change rows hold microseconds"),
    _writer("changeDataFeed", Answer.SUPPORTED, "change files are read where a commit has them"),
    _writer("rowTracking", Answer.SUPPORTED, "row ids are delivered on request"),
    _writer("inCommitTimestamp", Answer.SUPPORTED, "in-commit timestamps are used where present"),
    _writer("domainMetadata", Answer.IGNORED, "requirements on readers must come as a reader feature"),
    _writer("appendOnly", Answer.IGNORED, "it forbids writers to delete; the log is read as it is"),
    _writer("invariants", Answer.IGNORED, _CHECKED_ON_WRITE),
    _writer("checkConstraints", Answer.IGNORED, _CHECKED_ON_WRITE),
    _writer("generatedColumns", Answer.IGNORED, _CHECKED_ON_WRITE),
    _writer("allowColumnDefaults", Answer.IGNORED, _CHECKED_ON_WRITE),
    _writer("identityColumns", Answer.IGNORED, _CHECKED_ON_WRITE),
    _writer("clustering", Answer.IGNORED, "it defines which rows share a file"),
    _writer("liquid", Answer.IGNORED, "the old name of clustering"),
    _writer("icebergCompatV1", Answer.IGNORED, _ICEBERG_LIMITS),
    _writer("icebergCompatV2", Answer.IGNORED, _ICEBERG_LIMITS),
    _writer("icebergCompatV3", Answer.IGNORED, _ICEBERG_LIMITS),
    _writer("icebergWriterCompatV1", Answer.IGNORED, _ICEBERG_LIMITS),
    _writer("icebergWriterCompatV3", Answer.IGNORED, _ICEBERG_LIMITS),
    _writer("checkpointProtection", Answer.IGNORED, "it restricts log cleanup; protocols are checked at every version"),
    _writer("materializePartitionColumns", Answer.IGNORED, "files repeat partition values; the log's values are used"),
    _writer("collations", Answer.IGNORED, _TEXT_ORDER),
    _writer("collations-preview", Answer.IGNORED, _TEXT_ORDER),
    _writer("coordinatedCommits-preview", Answer.IGNORED, "commits are read once they are in the log, in order"),
    _writer("redirectWriterOnly-preview", Answer.IGNORED, "it sends writers elsewhere; readers stay"),
    Feature("void", Scope.TYPE, Answer.SUPPORTED, "every value is null; no file has the column"),
    Feature("interval", Scope.TYPE, Answer.REFUSED, "its storage format is still a proposal"),
)

_READER: Final = {feature.name: feature for feature in FEATURES if feature.scope is Scope.READER}
READER_FEATURES: Final = frozenset(name for name, feature in _READER.items() if feature.answer is not Answer.REFUSED)
# A table may have a column type without the feature that announces it.
_REFUSED_TYPES: Final = {
    **{row.name: row.why for row in FEATURES if row.scope is Scope.TYPE and row.answer is Answer.REFUSED},
    "geometry": _GEOSPATIAL,
    "geography": _GEOSPATIAL,
}
_NAME: Final = re.compile(r"[\s(]")  # ends a type's name: its parameters follow
_UNKNOWN: Final = "lake-tailer does not know it, and a reader must"


def check_protocol(protocol: Protocol, table: str, version: int, catalog: bool = False) -> None:
    """Raise `UnsupportedFeature` unless a table with `protocol` can be read faithfully.

    Reader versions 1 and 2 require at most column mapping. Version 3 requires the features in `readerFeatures`. Other
    versions are not specified. `catalog`: whether commits come from the table's catalog. Raises `LogCorrupt` where
    that list is missing.
    """
    if protocol.min_reader_version not in (1, 2, 3):
        feature = f"reader version {protocol.min_reader_version}"
        asked = sorted(set(protocol.reader_features or ()) - READER_FEATURES)
        if asked:
            feature += f" and reader features {', '.join(asked)}"
        raise UnsupportedFeature(table, feature, version)
    if protocol.min_reader_version < 3:
        return
    if protocol.reader_features is None:
        raise LogCorrupt(table, "protocol", "reader version 3 without the list readerFeatures", version)
    for name in protocol.reader_features:
        if name not in READER_FEATURES and not (catalog and name == _CATALOG):
            reason = _READER[name].why if name in _READER else _UNKNOWN
            error = UnsupportedFeature(table, f"reader feature {name}", version, reason)
            raise replace(error, remedy=_ASK_CATALOG) if name == _CATALOG else error


def maps_columns(protocol: Protocol) -> bool:
    """Return whether the property `delta.columnMapping.mode` must be honoured (PROTOCOL.md, "Column Mapping")."""
    listed = protocol.min_reader_version == 3 and _MAPPING in (protocol.reader_features or ())
    return protocol.min_reader_version == 2 or listed


def type_refusal(kind: str) -> str:
    """Return why an unsupported column type is refused. `kind`: as a `schemaString` names it."""
    return _REFUSED_TYPES.get(_NAME.split(kind, maxsplit=1)[0], "lake-tailer cannot read it")
