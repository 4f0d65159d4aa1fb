"""Tables that `tailer plan` shows on a terminal."""

import json
from pathlib import Path

import pytest

from tailer.cli import plan as shown
from tests.support.follow import plans
from tests.support.tables.log_files import add, metadata, protocol, write_commit


def test_a_partition_is_named_as_users_know_its_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"delta.columnMapping.physicalName": "col-59ea", "delta.columnMapping.id": 1}
    fields = [{"name": "country", "type": "string", "nullable": True, "metadata": keys}]
    schema = json.dumps({"type": "struct", "fields": fields})
    mapped = metadata(schema, ["country"], **{"delta.columnMapping.mode": "name"})
    write_commit(tmp_path, 0, protocol(2), mapped, add("f", partitionValues={"col-59ea": "DE"}))
    (plan,) = plans(tmp_path)
    shown._print(plan, [])
    text = capsys.readouterr().out
    assert "country=DE" in text
    assert "col-59ea" not in text
