"""More cases of the change feed that no public table covers: schema changes, and unusual logs.

Spark writes the tables. Where no writer makes such a commit, Spark's log or files are altered by hand, and Spark is
still the oracle wherever it can read the result.

On every landing: what Spark wrote, recorded (`property/test_written_cases.py`).
"""

from pathlib import Path
from typing import Any

import anyio
import pytest

from tailer.engine.local import LocalEngine
from tailer.errors import DataCorrupt, StateUnknown, TailerError
from tailer.events import ChangeBatch
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import OnDataLoss, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import Regime
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tests.support.follow import follow, follow_until_error
from tests.support.spark.table import Table, kinds
from tests.support.streams import Destination

# Spark writes it again in `make nightly`; what it wrote is read in `test_written_cases.py`.
recorded = pytest.mark.nightly

MAPPED = "'delta.columnMapping.mode' = 'name'"
WIDENING = "'delta.enableTypeWidening' = 'true'"


@recorded
def test_replace_with_a_new_id(table: Table) -> None:
    table.create("id BIGINT, n INT, gone STRING", "SELECT id, 1, 'x' FROM range(5)", feed=False)
    table.sql(
        "CREATE OR REPLACE TABLE {t} USING delta PARTITIONED BY (p) "
        "AS SELECT id, 'text' AS n, DATE'2026-01-01' AS p FROM range(2)"
    )
    table.sql(
        "CREATE OR REPLACE TABLE {t} USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true') "
        "AS SELECT id, 2.5D AS n FROM range(3)"
    )
    versions = table.check(feed_from=None)
    assert len({version.plan.table_id for version in versions}) == 3
    assert [version.plan.feed for version in versions] == [False, False, False, True]
    for version, gone, come in ((2, ["id", "n", "gone"], ["id", "n", "p"]), (3, ["id", "n", "p"], ["id", "n"])):
        before, after = versions[version].tables
        assert before.schema.names[:-3] == gone
        assert after.schema.names[:-3] == come
    assert [kinds(version) for version in versions[2:]] == [{"delete": 5, "insert": 2}, {"delete": 2, "insert": 3}]


@pytest.mark.parametrize(("mode", "vectors"), [("name", True), ("id", False)], ids=["name, vectors", "id"])
@recorded
def test_rename_in_the_middle_of_the_range(table: Table, mode: str, vectors: bool) -> None:
    """Spark refuses the whole range, but answers for each version."""
    table.create(
        "id BIGINT, n INT, s STRUCT<a: INT, l: ARRAY<STRUCT<x: INT>>>, p STRING",
        "SELECT id, 1, named_struct('a', 2, 'l', array(named_struct('x', 3))), 'a/b' FROM range(6)",
        vectors=vectors,
        partition="p",
        properties=f"'delta.columnMapping.mode' = '{mode}'",
    )
    table.sql("ALTER TABLE {t} RENAME COLUMN n TO `m %.`")
    table.sql("UPDATE {t} SET `m %.` = 5 WHERE id = 1")
    for former, name in (("s.a", "b"), ("s.l.element.x", "y"), ("p", "q"), ("id", "key")):
        table.sql(f"ALTER TABLE {{t}} RENAME COLUMN {former} TO {name}")
    table.sql("DELETE FROM {t} WHERE key < 3")
    table.sql("INSERT OVERWRITE {t} SELECT * FROM {t} WHERE key = 4")
    versions = table.check(feed_from=9)
    assert [version.plan.regime for version in versions[4:8]] == [Regime.NONE] * 4
    assert versions[9].table.schema.names[:4] == ["key", "m %.", "s", "q"]
    assert kinds(versions[8]) == {"delete": 3}


@recorded
def test_drop_in_the_middle_of_the_range(table: Table) -> None:
    rows = "SELECT id, 1, named_struct('a', 2, 'b', 'x') FROM range(6)"
    table.create("id BIGINT, n INT, s STRUCT<a: INT, b: STRING>", rows, properties=MAPPED)
    table.sql("UPDATE {t} SET n = 2 WHERE id = 1")
    table.sql("ALTER TABLE {t} DROP COLUMN s.a")
    table.sql("DELETE FROM {t} WHERE id = 2")
    table.sql("ALTER TABLE {t} DROP COLUMN n")
    table.sql("UPDATE {t} SET s.b = 'y' WHERE id = 3")
    table.sql("ALTER TABLE {t} ADD COLUMN n INT")
    table.sql("DELETE FROM {t} WHERE id = 4")
    versions = table.check(feed_from=7)
    assert versions[6].table.schema.names[:2] == ["id", "s"]
    assert versions[8].table.column("n").to_pylist() == [None]


@recorded
def test_widening_in_the_middle_of_the_range(table: Table) -> None:
    columns = "id BIGINT, n TINYINT, d DECIMAL(5,1), f FLOAT, t DATE, s STRUCT<a: SMALLINT>, m MAP<STRING, INT>"
    row = "7Y, 1.5BD, CAST(0.1 AS FLOAT), DATE'1969-12-31', named_struct('a', 3S), map('k', 4)"
    more = f"{WIDENING}, 'delta.feature.timestampNtz' = 'supported'"
    table.create(columns, f"SELECT id, {row} FROM range(6)", vectors=True, properties=more)
    table.sql("DELETE FROM {t} WHERE id = 0")
    for column, kind in (("n", "INT"), ("d", "DECIMAL(9,3)"), ("f", "DOUBLE"), ("t", "TIMESTAMP_NTZ")):
        table.sql(f"ALTER TABLE {{t}} ALTER COLUMN {column} TYPE {kind}")
    for path, kind in (("s.a", "DOUBLE"), ("m.value", "BIGINT"), ("n", "BIGINT")):
        table.sql(f"ALTER TABLE {{t}} ALTER COLUMN {path} TYPE {kind}")
    table.sql("DELETE FROM {t} WHERE id = 1")
    table.sql("UPDATE {t} SET n = n + 5000000000 WHERE id = 2")
    table.sql("INSERT OVERWRITE {t} SELECT * FROM {t} WHERE id = 3")
    versions = table.check(feed_from=10)
    assert versions[1].table.schema.field("n").type == "int8"
    assert versions[10].table.schema.field("n").type == "int64"
    assert kinds(versions[10]) == {"delete": 1}


@recorded
def test_same_path_added_again_without_a_vector(table: Table) -> None:
    """The rows of the file are unchanged; Spark's own feed fails at the commit."""
    table.create("id BIGINT", "SELECT id FROM range(4)")
    (add,) = table.actions(1, "add")
    remove = {**add, "deletionTimestamp": 1, "extendedFileMetadata": True}
    table.commit({"remove": remove}, {"add": add})
    assert table.check(feed_from=0, feed_to=1)[2].plan.tasks == ()


@recorded
def test_missing_commit_info(table: Table) -> None:
    table.create("id BIGINT, n INT", "SELECT id, 1 FROM range(5)")
    table.sql("UPDATE {t} SET n = 2 WHERE id < 2")
    table.sql("DELETE FROM {t} WHERE id = 3")
    for version in range(table.latest + 1):
        kept = [
            {kind: action}
            for kind in ("protocol", "metaData", "add", "remove", "cdc")
            for action in table.actions(version, kind)
        ]
        table.rewrite(version, kept)
    versions = table.check()
    assert [version.plan.operation for version in versions] == [None] * 4
    assert kinds(versions[2]) == {"update_preimage": 2, "update_postimage": 2}


@recorded
def test_two_transaction_app_ids(table: Table) -> None:
    """Several writers keep their progress in the source table; a repeated write makes no version."""
    table.create("id BIGINT", "SELECT id FROM range(2)")
    for app, number, first in (("a", 1, 10), ("b", 1, 20), ("a", 1, 30), ("b", 7, 40)):
        writer = table.spark.range(first, first + 2, 1, 1).write.format("delta").mode("append")
        writer.option("txnAppId", app).option("txnVersion", number).save(str(table.path))
    assert [table.actions(version, "txn")[0]["appId"] for version in (2, 3, 4)] == ["a", "b", "b"]
    (add,) = table.actions(4, "add")
    gone = {**add, "deletionTimestamp": 1, "extendedFileMetadata": True}
    table.commit({"txn": {"appId": "a", "version": 2}}, {"txn": {"appId": "b", "version": 8}}, {"remove": gone})
    versions = table.check()
    assert [kinds(version) for version in versions[2:]] == [{"insert": 2}, {"insert": 2}, {"insert": 2}, {"delete": 2}]


def with_vector(table: Table) -> tuple[Path, dict[str, Any]]:
    """Make a table whose version 2 deletes rows by a vector; return the vector's file and descriptor."""
    table.create("id BIGINT", "SELECT id FROM range(10)", vectors=True)
    table.sql("DELETE FROM {t} WHERE id = 3")
    (add,) = table.actions(2, "add")
    (file,) = table.path.glob("deletion_vector_*.bin")
    return file, add["deletionVector"]


def stopped_at(table: Table, version: int) -> TailerError:
    """Return the error of `version`; all earlier versions must be readable."""
    versions, error = follow_until_error(table.path)
    assert len(versions) == version
    assert isinstance(error, TailerError)
    assert error.fields["version"] == version
    return error


@recorded
def test_vector_whose_checksum_is_wrong(table: Table) -> None:
    file, descriptor = with_vector(table)
    assert kinds(table.check()[2]) == {"delete": 1}
    whole = bytearray(file.read_bytes())
    whole[descriptor["offset"] + 4 + descriptor["sizeInBytes"]] ^= 1
    file.write_bytes(whole)
    error = stopped_at(table, 2)
    assert isinstance(error, DataCorrupt)
    assert "CRC" in error.reason
    assert error.path == str(file)


@pytest.mark.parametrize("off", [-4, 4])
def test_vector_with_a_wrong_size(table: Table, off: int) -> None:
    file, descriptor = with_vector(table)
    (add,), (remove,) = table.actions(2, "add"), table.actions(2, "remove")
    wrong = {**descriptor, "sizeInBytes": descriptor["sizeInBytes"] + off}
    table.rewrite(2, [{"add": {**add, "deletionVector": wrong}}, {"remove": remove}])
    error = stopped_at(table, 2)
    assert isinstance(error, DataCorrupt)
    assert error.path == str(file)


@recorded
def test_commit_with_only_an_unknown_action(table: Table) -> None:
    table.create("id BIGINT", "SELECT id FROM range(4)")
    table.commit({"somethingNew": {"path": "part-0.parquet", "dataChange": True}})
    table.sql("DELETE FROM {t} WHERE id = 1")
    versions = table.check()
    assert versions[2].plan.regime is Regime.NONE
    assert follow(table.path, 3)[0].plan == versions[3].plan


@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_lost_commit_without_a_checkpoint(table: Table, damage: str) -> None:
    """No later commit stands in for the state, although Spark writes a version checksum with each."""
    table.create("id BIGINT", "SELECT id FROM range(4)")
    table.sql("ALTER TABLE {t} ADD COLUMNS (x STRING)")
    table.sql("INSERT INTO {t} VALUES (4, 'four')")
    table.sql("DELETE FROM {t} WHERE id = 4")
    if damage == "missing":
        table.commit_file(2).unlink()
    else:
        table.commit_file(2).write_text("{")
    there = Destination()
    skip = Policy(on_data_loss=OnDataLoss.SKIP)
    log, end = DeltaTableLog(LocalStore(table.path)), Start.parse("latest")
    run = row_pipeline("p", log, there.sink(), LocalEngine(1), TimerWake(), Start.parse("earliest"), end, skip).run
    with pytest.raises(StateUnknown, match="version 2"):
        anyio.run(run)
    (items,) = there.log.values()
    assert [item.version for item in items if isinstance(item, ChangeBatch)] == [1]
