"""The `_last_checkpoint` hints of other writers, with their checksums."""

import pytest

from tailer.formats.delta.checkpoints.hint import LAST_CHECKPOINT, parse_last_checkpoint
from tests.support.tables.golden import golden_delta


@pytest.mark.parametrize(
    ("table", "version"),
    [
        ("app-txn-checkpoint", 1),
        ("basic-dv-with-checkpoint", 40),
        ("multi-part-checkpoint", 1),
        ("only-checkpoint-files", 2),
        ("unshredded-variant", 2),
        ("v2-checkpoint-json", 2),
        ("v2-checkpoints-json-with-sidecars", 6),
        ("v2-classic-checkpoint-parquet", 1),
    ],
)
def test_hints_of_other_writers(table: str, version: int) -> None:
    data = (golden_delta(table) / LAST_CHECKPOINT).read_bytes()
    assert parse_last_checkpoint(data) == version
    if b'"checksum"' in data:
        with pytest.raises(ValueError, match="checksum"):
            parse_last_checkpoint(data.replace(f'"version":{version}'.encode(), f'"version":{version + 1}'.encode()))
