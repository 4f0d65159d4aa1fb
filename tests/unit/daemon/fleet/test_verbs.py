"""Commands that a pipeline never takes, because of its kind, are refused before anything is done."""

from pathlib import Path

import pytest

from tailer.config.settings import load
from tailer.daemon.fleet.backfills import check_verb
from tailer.errors import ConfigError

LOGS = ('kind = "files"\npath = "x"', 'kind = "delta"\npath = "x"', 'kind = "stdout"\nformat = "jsonl"')
MIRRORS = (
    'kind = "sql"\nurl = "sqlite:///x.db"\nkey = ["id"]',
    'kind = "sql"\nurl = "duckdb:///x.db"\nkey = ["id"]',
    'kind = "delta"\npath = "x"\nmode = "mirror"\nkey = ["id"]',
)


@pytest.mark.parametrize("verb", ["resnapshot", "backfill", "skip"])
@pytest.mark.parametrize("sink", [*LOGS, *MIRRORS])
def test_a_mirror_takes_a_snapshot_only(tmp_path: Path, sink: str, verb: str) -> None:
    (tmp_path / "t.toml").write_text(f'state_table = "s"\n[pipelines.p]\ntable = "t"\n[pipelines.p.sink]\n{sink}')
    (pipeline,) = load(tmp_path / "t.toml").pipelines
    if sink in LOGS or verb == "resnapshot":
        check_verb(pipeline, verb)
        return
    with pytest.raises(ConfigError, match="delivers to a mirror") as refused:
        check_verb(pipeline, verb)
    assert "`tailer resnapshot PIPELINE`" in refused.value.hint
