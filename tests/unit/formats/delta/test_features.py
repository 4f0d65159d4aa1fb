"""Every known table feature has an answer, and the protocol check gives that answer."""

import json
from typing import Any

import pytest

from tailer.errors import LogCorrupt, UnsupportedFeature
from tailer.formats.delta.features import (
    FEATURES,
    READER_FEATURES,
    Answer,
    Scope,
    check_protocol,
    maps_columns,
    type_refusal,
)
from tailer.formats.delta.log.actions import Protocol
from tailer.formats.delta.schema import arrow_schema
from tests.support.cases import cases
from tests.support.tables.log_files import schema_string

SUPPORTED = [
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "timestampWithoutTimezone",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "typeWidening",
    "typeWidening-preview",
    "variantType",
    "variantType-preview",
    "variantShredding",
    "variantShredding-preview",
]
REFUSED = [
    "catalogManaged",
    "catalogOwned-preview",
    "geospatial",
    "geospatial-dev",
    "adaptiveMetadata-preview",
    "redirectReaderWriter-preview",
    "timestampNanos",
]
WRITER_ONLY = [
    "appendOnly",
    "invariants",
    "checkConstraints",
    "generatedColumns",
    "allowColumnDefaults",
    "identityColumns",
    "changeDataFeed",
    "rowTracking",
    "domainMetadata",
    "clustering",
    "liquid",
    "icebergCompatV1",
    "icebergCompatV2",
    "icebergCompatV3",
    "icebergWriterCompatV1",
    "icebergWriterCompatV3",
    "inCommitTimestamp",
    "checkpointProtection",
    "materializePartitionColumns",
    "collations",
    "collations-preview",
    "coordinatedCommits-preview",
    "redirectWriterOnly-preview",
]


def gate(reader: int, features: list[str] | None = None, writer_features: list[str] | None = None) -> Protocol:
    return Protocol(reader, 7, features, writer_features)


def names(scope: Scope, *answers: Answer) -> list[str]:
    return [row.name for row in FEATURES if row.scope is scope and row.answer in answers]


def test_the_table_has_every_feature_there_is() -> None:
    assert sorted(names(Scope.READER, Answer.SUPPORTED)) == sorted(SUPPORTED)
    assert sorted(names(Scope.READER, Answer.REFUSED)) == sorted(REFUSED)
    assert sorted(names(Scope.WRITER, *Answer)) == sorted(WRITER_ONLY)
    assert names(Scope.TYPE, *Answer) == ["void", "interval"]


def test_each_has_one_answer_and_says_why() -> None:
    every = [row.name for row in FEATURES]
    assert len(set(every)) == len(every)
    assert all(row.why for row in FEATURES)
    assert not names(Scope.READER, Answer.IGNORED)
    assert not names(Scope.WRITER, Answer.REFUSED)


@cases("name", SUPPORTED)
def test_supported_features_pass(name: str) -> None:
    assert name in READER_FEATURES
    check_protocol(gate(3, [name]), "t", 1)


@cases("name", [*REFUSED, "teleport"])
def test_refused_and_unknown_features_stop_with_their_name(name: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        check_protocol(gate(3, ["deletionVectors", name]), "t", 7)
    error = caught.value
    assert (error.table, error.version, error.feature) == ("t", 7, f"reader feature {name}")
    assert error.reason == next((row.why for row in FEATURES if row.name == name), error.reason)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reader", [1, 2, 3])
@pytest.mark.parametrize("name", [*WRITER_ONLY, "teleport", "variantType"])
def test_writer_features_never_stop_a_reader(reader: int, name: str) -> None:
    check_protocol(gate(reader, [] if reader == 3 else None, [name]), "t", 1)


def test_a_catalog_opens_the_gate_for_its_own_feature_only() -> None:
    with pytest.raises(UnsupportedFeature, match="configure the pipeline's catalog"):
        check_protocol(gate(3, ["catalogManaged"]), "t", 1)
    check_protocol(gate(3, ["catalogManaged"]), "t", 1, catalog=True)
    for name in sorted({*REFUSED, "teleport"} - {"catalogManaged"}):
        with pytest.raises(UnsupportedFeature):
            check_protocol(gate(3, ["catalogManaged", name]), "t", 1, catalog=True)


@pytest.mark.parametrize(
    ("reader", "features", "feature"),
    [
        (0, None, "reader version 0"),
        (-1, None, "reader version -1"),
        (4, None, "reader version 4"),
        (5, ["deletionVectors", "teleport"], "reader version 5 and reader features teleport"),
    ],
)
def test_reader_versions_that_do_not_exist(reader: int, features: list[str] | None, feature: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        check_protocol(gate(reader, features), "t", 1)
    assert caught.value.feature == feature


def test_reader_version_3_without_its_list() -> None:
    with pytest.raises(LogCorrupt, match="without the list readerFeatures"):
        check_protocol(gate(3), "t", 1)
    check_protocol(gate(3, []), "t", 1)


@cases(
    ("protocol", "maps"),
    [
        (gate(1), False),
        (gate(1, ["columnMapping"]), False),
        (gate(1, None, ["columnMapping"]), False),
        (gate(2), True),
        (gate(3, []), False),
        (gate(3, ["deletionVectors"]), False),
        (gate(3, ["columnMapping"]), True),
    ],
)
def test_which_protocols_map_columns(protocol: Protocol, maps: bool) -> None:
    assert maps_columns(protocol) is maps


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_mapping_mode_that_the_protocol_does_not_support(mode: str, nested: bool) -> None:
    """The mode is ignored, as the protocol requires, and refused where that would make a difference."""

    def schema(physical: str) -> str:
        keys = {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": 1}
        fields: list[Any] = [{"name": "a", "type": "long", "nullable": True, "metadata": keys}]
        if nested:
            kind = {"type": "struct", "fields": fields}
            fields = [{"name": "s", "type": {"type": "array", "elementType": kind, "containsNull": True}}]
        return json.dumps({"type": "struct", "fields": fields})

    plain = arrow_schema(schema("a"), mode, "t", 3, maps_columns=False)
    assert plain.equals(arrow_schema(schema("a"), "none", "t", 3), check_metadata=True)
    assert arrow_schema(schema_string(a="long"), mode, "t", 3, maps_columns=False).names == ["a"]
    with pytest.raises(LogCorrupt, match="does not support column mapping"):
        arrow_schema(schema("col-1"), mode, "t", 3, maps_columns=False)
    # Without the mode, the same metadata means nothing.
    assert arrow_schema(schema("col-1"), "none", "t", 3, maps_columns=False).equals(plain)


@cases(
    ("kind", "reason"),
    [
        ("interval day to second", "still a proposal"),
        ("interval", "still a proposal"),
        ("geometry", "does not decode geometry and geography values"),
        ("geometry(OGC:CRS84)", "does not decode geometry and geography values"),
        ("geography(OGC:CRS84, spherical)", "does not decode geometry and geography values"),
        ("voids", "cannot read it"),
        ("variants", "cannot read it"),
        ("", "cannot read it"),
    ],
)
def test_why_a_type_is_refused(kind: str, reason: str) -> None:
    assert reason in type_refusal(kind)
    with pytest.raises(UnsupportedFeature) as caught:
        arrow_schema(schema_string(a=kind), "none", "t", 3)
    assert caught.value.reason == type_refusal(kind)
