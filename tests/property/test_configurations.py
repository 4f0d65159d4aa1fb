"""Configurations of random keys and values: every fault is found, whatever other faults there are, without a crash."""

import json
import tempfile
from pathlib import Path
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.config.settings import examine
from tests.support.seeds import repeats

VALUES: Final = st.one_of(
    st.booleans(),
    st.integers(-2, 100_000),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from(
        ["", "yes", "true", "id", "a/b", "host:1", "s3://x/y", "avro", "json", "arrow", "debezium", "http://[x"]
    ),
    st.lists(st.sampled_from(["id", "amount"]), max_size=2),
)
PIPELINE_KEYS: Final = [
    "start", "columns", "row_ids", "carryovers", "compute_updates", "key", "skip_unchanged", "on_schema_change",
    "on_data_loss", "poll_interval_s", "write", "shards", "tabel",
]  # fmt: skip
SINK_KEYS: Final = [
    "topic", "key", "envelope", "encoding", "tombstones", "boundary", "partitions", "transaction_rows", "end_topic",
    "large_records", "dead_letter_topic", "registry_url", "registry_username", "client", "registry_password",
    "registry_token", "create_topics", "envelop",
]  # fmt: skip
# Invalid in any configuration: a wrong type, or a value that is never valid.
WRONG: Final[dict[str, Any]] = {
    "sink.partitions": 0,
    "sink.topic": "a/b",
    "sink.create_topics": "yes",
    "compute_updates": "yes",
    "row_ids": 1,
    "poll_interval_s": "1",
    "start": "yesterday",
    "columns": "id",
}


def toml(table: dict[str, Any]) -> str:
    """Format keys and values as TOML."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


@settings(max_examples=repeats(30))
@given(
    st.dictionaries(st.sampled_from(PIPELINE_KEYS), VALUES, max_size=5),
    st.dictionaries(st.sampled_from(SINK_KEYS), VALUES, max_size=6),
    st.sets(st.sampled_from(sorted(WRONG))),
)
def test_no_fault_hides_another(pipeline: dict[str, Any], sink: dict[str, Any], wrong: set[str]) -> None:
    for key in wrong:
        (sink if key.startswith("sink.") else pipeline)[key.removeprefix("sink.")] = WRONG[key]
    text = f'[pipelines.p]\ntable = "t"\n{toml(pipeline)}[pipelines.p.sink]\nkind = "kafka"\n'
    other = '[pipelines.other]\ntable = "t"\nsink = {kind = "files", path = "out"}\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tailer.toml"
        path.write_text(f'{text}bootstrap_servers = "h:1"\n{toml(sink)}{other}')
        findings = examine(path)
    found = {".".join(problem.key[2:]) for problem in findings.problems}
    assert wrong <= found
    assert (findings.settings is None) == bool(findings.problems)
    assert [each.name for each in findings.sound] == (["other"] if findings.problems else ["p", "other"])
