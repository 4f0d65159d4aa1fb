"""What a table may ask of its readers, and what we answer (PROTOCOL.md, "Table Features", "Protocol Evolution").

`FEATURES` is the answer: one row for every feature there is a specification or a proposal for, and for every column
type that no feature stands guard over. The gate stands at every version, because protocols change in the middle of a
history, upwards and downwards. A reader feature that has no row, or one that says so, is refused; features that only
writers must know do not concern a reader and refuse nothing, known or not.
"""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tailer.delta.log.actions import Protocol
from tailer.errors import LogCorrupt, UnsupportedFeature

__all__ = [
    "FEATURES",
    "READER_FEATURES",
    "Answer",
    "Feature",
    "Scope",
    "check_protocol",
    "maps_columns",
    "type_refusal",
]


class Scope(StrEnum):
    """Who must know of a feature."""

    READER = "readers and writers"
    WRITER = "writers only"
    TYPE = "whoever meets the column type, which no feature announces"


class Answer(StrEnum):
    """What we do with a table that has the feature."""

    SUPPORTED = "supported"  # we do what it asks
    IGNORED = "ignored"  # it asks nothing of a reader of changes
    REFUSED = "refused"  # we stop, with its name


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the table. `why`: what we do for it, why it may be ignored, or why it is refused."""

    name: str
    scope: Scope
    answer: Answer
    why: str


_CATALOG: Final = "catalogManaged"
_ASK_CATALOG: Final = (
    "Follow it with a pipeline that has a catalog: [pipelines.NAME.catalog], see `tailer check` and the README."
)
_MAPPING: Final = "columnMapping"
_BY_CATALOG: Final = "its commits are handed out by a catalog; reading the files alone would miss some"
_WIDENING: Final = "old files hold narrower types; their values are cast up"
_VARIANT: Final = "lake-tailer does not decode variant values"
_GEOSPATIAL: Final = "lake-tailer does not decode geometry and geography values"
_BORDERS_ON_ICEBERG: Final = "it restricts what writers may write, to what an Iceberg reader takes"
_CHECKED_ON_WRITE: Final = "writers check or compute values before they write them; files hold the result"
_ORDER_OF_TEXT: Final = "it says how texts compare; change rows carry them as they are"
_REDIRECT: Final = "the table has moved to another location, and where to is not settled"


def _reader(name: str, answer: Answer, why: str) -> Feature:
    return Feature(name, Scope.READER, answer, why)


def _writer(name: str, answer: Answer, why: str) -> Feature:
    return Feature(name, Scope.WRITER, answer, why)


FEATURES: Final = (
    _reader(_MAPPING, Answer.SUPPORTED, "columns are found by field id or physical name"),
    _reader("deletionVectors", Answer.SUPPORTED, "rows are selected by them, and told apart between two of them"),
    _reader("timestampNtz", Answer.SUPPORTED, "a type of its own, without a time zone"),
    _reader("timestampWithoutTimezone", Answer.SUPPORTED, "what early writers called timestampNtz"),
    _reader("v2Checkpoint", Answer.SUPPORTED, "state is read from them"),
    _reader("vacuumProtocolCheck", Answer.SUPPORTED, "it asks nothing of a reader but to know it"),
    _reader("typeWidening", Answer.SUPPORTED, _WIDENING),
    _reader("typeWidening-preview", Answer.SUPPORTED, _WIDENING),
    _reader("variantType", Answer.REFUSED, _VARIANT),
    _reader("variantType-preview", Answer.REFUSED, _VARIANT),
    _reader("variantShredding", Answer.REFUSED, _VARIANT),
    _reader("variantShredding-preview", Answer.REFUSED, _VARIANT),
    _reader(_CATALOG, Answer.REFUSED, f"{_BY_CATALOG}; configure the pipeline's catalog"),
    _reader("catalogOwned-preview", Answer.REFUSED, f"{_BY_CATALOG}; this preview of catalogManaged has other rules"),
    _reader("geospatial", Answer.REFUSED, _GEOSPATIAL),
    _reader("geospatial-dev", Answer.REFUSED, _GEOSPATIAL),
    _reader("adaptiveMetadata-preview", Answer.REFUSED, "its commits may keep their file changes outside the log"),
    _reader("redirectReaderWriter-preview", Answer.REFUSED, _REDIRECT),
    _reader("timestampNanos", Answer.REFUSED, "change rows hold microseconds"),
    _writer("changeDataFeed", Answer.SUPPORTED, "change files are read wherever a commit has some"),
    _writer("rowTracking", Answer.SUPPORTED, "row ids are given on request"),
    _writer("inCommitTimestamp", Answer.SUPPORTED, "a commit that tells its time is believed"),
    _writer("domainMetadata", Answer.IGNORED, "what a domain asks of readers must come as a reader feature"),
    _writer("appendOnly", Answer.IGNORED, "it forbids writers to delete; what the log says is read all the same"),
    _writer("invariants", Answer.IGNORED, _CHECKED_ON_WRITE),
    _writer("checkConstraints", Answer.IGNORED, _CHECKED_ON_WRITE),
    _writer("generatedColumns", Answer.IGNORED, _CHECKED_ON_WRITE),
    _writer("allowColumnDefaults", Answer.IGNORED, _CHECKED_ON_WRITE),
    _writer("identityColumns", Answer.IGNORED, _CHECKED_ON_WRITE),
    _writer("clustering", Answer.IGNORED, "it says which rows share a file"),
    _writer("liquid", Answer.IGNORED, "what early writers called clustering"),
    _writer("icebergCompatV1", Answer.IGNORED, _BORDERS_ON_ICEBERG),
    _writer("icebergCompatV2", Answer.IGNORED, _BORDERS_ON_ICEBERG),
    _writer("icebergCompatV3", Answer.IGNORED, _BORDERS_ON_ICEBERG),
    _writer("icebergWriterCompatV1", Answer.IGNORED, _BORDERS_ON_ICEBERG),
    _writer("icebergWriterCompatV3", Answer.IGNORED, _BORDERS_ON_ICEBERG),
    _writer("checkpointProtection", Answer.IGNORED, "it restricts log cleanup; protocols are checked at every version"),
    _writer("materializePartitionColumns", Answer.IGNORED, "files repeat partition values; the log's are taken"),
    _writer("collations", Answer.IGNORED, _ORDER_OF_TEXT),
    _writer("collations-preview", Answer.IGNORED, _ORDER_OF_TEXT),
    _writer("coordinatedCommits-preview", Answer.IGNORED, "commits are seen once they are in the log, in order"),
    _writer("redirectWriterOnly-preview", Answer.IGNORED, "it sends writers elsewhere; readers stay"),
    Feature("void", Scope.TYPE, Answer.SUPPORTED, "every value is null, and no file has the column"),
    Feature("interval", Scope.TYPE, Answer.REFUSED, "how files hold it is a proposal still"),
)

_READER: Final = {feature.name: feature for feature in FEATURES if feature.scope is Scope.READER}
READER_FEATURES: Final = frozenset(name for name, feature in _READER.items() if feature.answer is not Answer.REFUSED)
# A table may have a type and not the feature that stands guard over it.
_REFUSED_TYPES: Final = {
    **{row.name: row.why for row in FEATURES if row.scope is Scope.TYPE and row.answer is Answer.REFUSED},
    "variant": _VARIANT,
    "geometry": _GEOSPATIAL,
    "geography": _GEOSPATIAL,
}
_NAME: Final = re.compile(r"[\s(]")  # what ends a type's name: the rest are its parameters
_UNKNOWN: Final = "a reader must know it, and lake-tailer does not"


def check_protocol(protocol: Protocol, table: str, version: int, catalog: bool = False) -> None:
    """Raise `UnsupportedFeature` unless a table with `protocol` can be read faithfully.

    Reader versions 1 and 2 ask for no more than column mapping, of 3 the list `readerFeatures` says all; others are not
    specified. `catalog`: whether commits come from the table's catalog. Raises `LogCorrupt` where that list is missing.
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
    """Whether the table property `delta.columnMapping.mode` is to be honoured (PROTOCOL.md, "Column Mapping")."""
    listed = protocol.min_reader_version == 3 and _MAPPING in (protocol.reader_features or ())
    return protocol.min_reader_version == 2 or listed


def type_refusal(kind: str) -> str:
    """Why a column type that no schema of ours holds is refused. `kind`: as a `schemaString` names it."""
    return _REFUSED_TYPES.get(_NAME.split(kind, maxsplit=1)[0], "lake-tailer cannot read it")
