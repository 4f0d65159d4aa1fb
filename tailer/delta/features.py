"""What a table may ask of its readers, and what we answer (PROTOCOL.md, "Table Features").

The gate stands at every version, because protocols change in the middle of a history, upwards and downwards. Features
that only writers must know do not concern a reader and are not looked at.
"""

from typing import Final

from tailer.delta.actions import Protocol
from tailer.errors import UnsupportedFeature

__all__ = ["READER_FEATURES", "check_protocol"]

READER_FEATURES: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)

_REASONS: Final = {
    "catalogManaged": "its commits are handed out by a catalog; reading the files alone would miss some",
    "catalogOwned-preview": "its commits are handed out by a catalog; reading the files alone would miss some",
    "typeWidening": "columns may be narrower in old files than in the table",
    "typeWidening-preview": "columns may be narrower in old files than in the table",
    "adaptiveMetadata-preview": "its commits may keep their file changes outside the log",
}


def check_protocol(protocol: Protocol, table: str, version: int) -> None:
    """Raise `UnsupportedFeature` unless a table with `protocol` can be read faithfully."""
    if protocol.min_reader_version not in (1, 2, 3):
        feature = f"reader version {protocol.min_reader_version}"
        asked = sorted(set(protocol.reader_features or ()) - READER_FEATURES)
        if asked:
            feature += f" and reader features {', '.join(asked)}"
        raise UnsupportedFeature(table, feature, version)
    if protocol.min_reader_version == 3:
        for feature in protocol.reader_features or ():
            if feature not in READER_FEATURES:
                reason = _REASONS.get(feature, "a reader must know it, and lake-tailer does not")
                raise UnsupportedFeature(table, f"reader feature {feature}", version, reason)
