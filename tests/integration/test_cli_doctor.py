"""`tailer doctor`: what it finds, how little it reads, and that its configuration loads."""

import json
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailer.cli.doctor import sample
from tailer.cli.doctor.examination import MOST_COMMITS, Examination, examine
from tailer.cli.doctor.sample import MOST_ROWS, take_sample
from tailer.config.tables import TableRef, open_files
from tailer.plan import ChangeTask, TaskKind
from tests.support.daemon.commands import background, in_terminal, tailer
from tests.support.tables.log_files import add, commit_info, metadata, parquet, protocol, schema_string, write_commit
from tests.support.waiting import until

HISTORIES = Path(__file__).resolve().parents[1] / "lance_histories_data"


def table(path: Path, rows: int = 200, **columns: Any) -> Path:
    """Write a Delta table without a feed: rows, and an update that rewrites them."""
    data = {"customer_id": list(range(rows)), "city": ["Bern"] * rows} | columns
    write_deltalake(path, pa.table(data), mode="append")
    DeltaTable(path).update(updates={"city": "'Basel'"}, predicate="customer_id = 7")
    return path


def examined(*arguments: object) -> dict[str, Any]:
    """Return the JSON of an examination that finds nothing to stop at."""
    done = tailer("doctor", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def texts(found: dict[str, Any], topic: str) -> list[str]:
    """Return the findings about a topic, each after its level."""
    return [f"{each['level']} {each['text']}" for each in found["tables"][0]["findings"] if each["topic"] == topic]


def check(tmp_path: Path, configuration: str) -> dict[str, Any]:
    """Check that a configuration loads and its tables can be reached; return it."""
    (tmp_path / "tailer.toml").write_text(configuration)
    done = tailer("check", "--connect", "--config", tmp_path / "tailer.toml")
    assert done.returncode == 0, done.stdout
    return tomllib.loads(configuration)


def test_a_table_is_described_for_people(tmp_path: Path) -> None:
    path = table(tmp_path / "customers")
    done = tailer("doctor", path)
    assert (done.returncode, done.stderr) == (0, "")
    findings, _, configuration = done.stdout.partition("\n\n")
    title, *lines = findings.splitlines()
    assert title == f"{path}: a Delta table"
    topics = [line[5:18].strip() for line in lines]
    expected = ["table", "change feed", "commits", "cost", "comparing", "speed", "retention", "key", "", "history"]
    assert topics == [*expected, "access"]
    assert lines[4].endswith("1 of 2 commits with changes rewrote files, which are compared row by row")
    assert "customer_id may be one: its values are all different in the 200 rows of version 1" in lines[7]
    settings = check(tmp_path, configuration)["pipelines"]["customers"]
    assert settings["sink"] == {
        "kind": "sql",
        "url": "sqlite:///customers.db",
        "table": "customers",
        "key": ["customer_id"],
    }


def test_the_mirror_that_it_suggests_equals_the_table(tmp_path: Path) -> None:
    config = tmp_path / "tailer.toml"
    config.write_text(examined(table(tmp_path / "customers"))["configuration"])
    with background("run", "--config", config) as daemon:
        until(lambda: tailer("progress", "show", "--config", config).stdout.split("\t")[-1].strip() == "0")
        daemon.terminate()
        daemon.communicate(timeout=300)
    done = tailer("verify", "customers", "--config", config)
    assert (done.returncode, done.stdout.split(": ")[-1]) == (0, "200 rows\n")


@pytest.mark.parametrize("name", ["a b", "o'rders", 'quo"ted', "größe", "-", "1.2"])
def test_the_configuration_loads_whatever_a_table_is_called(tmp_path: Path, name: str) -> None:
    settings = check(tmp_path, examined(table(tmp_path / name))["configuration"])
    assert [each["table"] for each in settings["pipelines"].values()] == [str(tmp_path / name)]


def test_without_a_key_changes_go_to_files(tmp_path: Path) -> None:
    path = tmp_path / "events"
    write_deltalake(path, pa.table({"kind": ["a"] * 300}))
    found = examined(path)
    assert texts(found, "key")[0].startswith("note no column has only different values in the 300 rows of version 0")
    assert check(tmp_path, found["configuration"])["pipelines"]["events"]["sink"] == {
        "kind": "files",
        "path": "events-changes",
    }


def test_a_small_newest_commit_does_not_hide_the_rows_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    write_deltalake(path, pa.table({"order_id": range(5000), "kind": ["a"] * 5000}))
    write_deltalake(path, pa.table({"order_id": range(5000, 5035), "kind": ["a"] * 35}), mode="append")
    found = examined(path)
    assert found["tables"][0]["sampled_rows"] > 3000
    assert texts(found, "key") == [
        "note order_id may be one: its values are all different in the 5,035 rows of version 1 that were read"
    ]


def test_few_rows_make_no_key(tmp_path: Path) -> None:
    found = examined(table(tmp_path / "few", rows=8))
    assert texts(found, "key") == ["note too few rows to tell (8); their values differ in customer_id"]
    assert found["tables"][0]["key"] == []


def test_all_tables_of_a_template_have_a_line(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for name in ("sales_eu", "sales_us"):
        table(lake / name)
    (lake / "other").mkdir()
    done = tailer("doctor", lake / "sales_*")
    assert (done.returncode, done.stderr) == (0, "")
    lines, _, configuration = done.stdout.partition("\n\n")
    heading, *rows = (line.split("\t") for line in lines.splitlines())
    assert heading[0] == "table"
    assert [(row[0], row[1], row[5], row[6], row[7]) for row in rows] == [
        (str(lake / name), "1", "1 of 2", "customer_id", "ready") for name in ("sales_eu", "sales_us")
    ]
    settings = check(tmp_path, configuration)["pipelines"]["sales"]
    assert (settings["table"], settings["sink"]["table"]) == (str(lake / "sales_*"), "{table}")


def test_a_table_that_stops_does_not_hide_the_others(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    table(lake / "good")
    write_commit(lake / "gone", 0, protocol(9), metadata())
    done = tailer("doctor", lake / "*")
    assert done.returncode == 3
    verdicts = [line.split("\t")[-1] for line in done.stdout.splitlines()[1:3]]
    assert verdicts[0].startswith("stops: UnsupportedFeature: ")
    assert (verdicts[0].count("reader version 9"), verdicts[1]) == (1, "ready")


@pytest.mark.parametrize(("name", "code"), [("nothing", 3), ("none_*", 2)])
def test_where_there_is_no_table_the_error_is_named(tmp_path: Path, name: str, code: int) -> None:
    done = tailer("doctor", tmp_path / name)
    assert done.returncode == code
    shown = done.stdout + done.stderr
    assert ("no table fits" if code == 2 else "stop following    NotATable: ") in shown
    assert "[pipelines" not in shown


async def examination(path: Path) -> Examination:
    """Examine a table in this process."""
    return await examine(TableRef(str(path)).inspect(), TableRef(str(path)).open(), open_files())


@pytest.mark.anyio
async def test_what_it_reads_does_not_grow_with_the_table(tmp_path: Path) -> None:
    path = tmp_path / "long"
    write_commit(path, 0, protocol(), metadata(schema_string(a="long")), commit_info(operation="CREATE TABLE"))
    for version in range(1, 200):
        write_commit(path, version, commit_info(operation="WRITE"), modified_ms=version * 1000)
    file = parquet(path / "rows.parquet", pa.table({"a": pa.array(range(MOST_ROWS * 2), pa.int64())}))
    write_commit(path, 200, commit_info(operation="WRITE"), add(file.name, size=file.stat().st_size))
    found = await examination(path)
    assert found.stop is None
    assert [each.version for each in found.commits] == list(range(201 - MOST_COMMITS, 201))
    assert (found.sample.files, found.sample.rows, found.sample.unique) == (1, MOST_ROWS, ("a",))


@pytest.mark.anyio
async def test_lost_versions_and_files_are_found(tmp_path: Path) -> None:
    path = table(tmp_path / "orders")
    (old,) = [Path(uri) for uri in DeltaTable(path, version=0).file_uris()]
    old.unlink()
    found = await examination(path)
    assert (found.stop, [each.version for each in found.gone]) == (None, [1, 0])
    write_commit(path, 2, add("nowhere.parquet"), add("nowhere.parquet"))
    write_commit(path, 3, protocol(), metadata(), commit_info(operation="WRITE"))
    found = await examination(path)
    assert [(each.version, type(each.error).__name__) for each in found.lost] == [(2, "LogCorrupt")]


@pytest.mark.anyio
async def test_the_log_may_have_been_cleaned_up(tmp_path: Path) -> None:
    path = table(tmp_path / "orders")
    DeltaTable(path).create_checkpoint()
    (path / "_delta_log" / f"{0:020d}.json").unlink()
    write_deltalake(path, pa.table({"customer_id": [1000], "city": ["Chur"]}), mode="append")
    found = await examination(path)
    assert (found.stop, found.lost, found.begins) == (None, [], 1)
    assert [each.version for each in found.commits] == [1, 2]


def test_a_lance_dataset_is_described(tmp_path: Path) -> None:
    with tarfile.open(HISTORIES / "00.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = examined(tmp_path / "t")
    assert texts(found, "features") == ["ok stable row ids: supported"]
    assert texts(found, "row ids") == ["ok each row has an id, which pairs updates without a key"]
    assert texts(found, "retention")[0].startswith("note old versions are kept until somebody deletes them")
    assert check(tmp_path, found["configuration"])["pipelines"]["t"]["row_ids"] is True


def test_hazards_are_named(tmp_path: Path) -> None:
    path = table(tmp_path / "large", rows=2, picture=[b"x" * 2_000_000, b"y"])
    (warning,) = texts(examined(path), "hazard")
    assert warning == "warn column picture has a value of 2.0 MB: Kafka refuses messages above 1 MB"


def test_it_says_what_it_looked_at(tmp_path: Path) -> None:
    """A file of an older version that is gone is not looked for, and nothing says that it is there."""
    path = table(tmp_path / "orders")
    for number in range(2):
        write_deltalake(path, pa.table({"customer_id": [number], "city": ["Chur"]}), mode="append")
    (old,) = [
        Path(uri) for uri in DeltaTable(path, version=2).file_uris() if uri not in DeltaTable(path, 1).file_uris()
    ]
    old.unlink()
    (found,) = texts(examined(path), "history")
    assert found == (
        "ok none of the commits looked at is missing, and none is known to contradict the table; of data files, only "
        "some of versions 1 and 3 were opened"
    )


def test_a_table_that_stops_has_no_configuration_and_no_figures(tmp_path: Path) -> None:
    write_commit(tmp_path / "t", 0, protocol(9), metadata())
    done = tailer("doctor", tmp_path / "t", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["configuration"], found["tables"][0]["typical_bytes"]) == (3, None, None)
    assert texts(found, "history") == []


def test_the_configuration_has_the_allowed_roots(tmp_path: Path) -> None:
    path = table(tmp_path / "orders")
    found = examined(path, "--allow-root", tmp_path / "origin")
    assert check(tmp_path, found["configuration"])["pipelines"]["orders"]["allowed_roots"] == [str(tmp_path / "origin")]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view()])
def test_large_types_can_be_keys_and_hazards(monkeypatch: pytest.MonkeyPatch, kind: pa.DataType) -> None:
    values = pa.array([b"a", b"b" * 3000], pa.large_binary())
    column = (values.cast(pa.large_string()) if "string" in str(kind) else values).cast(kind)
    rows = pa.record_batch({"id": column})
    monkeypatch.setattr(sample, "_first_rows", lambda *_: [rows])
    monkeypatch.setattr(sample, "_int96", lambda *_: [])
    task = ChangeTask("/t", "id", 0, 0, 1, TaskKind.INSERT, "/t/1", 1, rows.schema)
    found = take_sample([task], open_files())
    assert found.unique == ("id",)
    assert found.largest is not None
    assert found.largest.size_bytes == 3000


def test_a_terminal_shows_findings_in_columns(tmp_path: Path) -> None:
    code, shown = in_terminal("doctor", table(tmp_path / "customers"))
    assert code == 0
    assert "customer_id may be one" in shown


def test_the_log_tells_features_keys_retention_and_hazards(tmp_path: Path) -> None:
    columns = [
        {"name": "id", "type": "long", "nullable": True, "metadata": {"delta.identity.start": 1}},
        {"name": "code", "type": "string", "nullable": True, "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}},
    ]
    for number, column in enumerate(columns):
        column["metadata"] |= {  # type: ignore[operator]
            "delta.columnMapping.physicalName": f"c{number}",
            "delta.columnMapping.id": number,
        }
    properties = {
        "delta.columnMapping.mode": "name",
        "delta.enableRowTracking": "true",
        "delta.deletedFileRetentionDuration": "interval 6 hours",
        "delta.constraints.positive": "id > 0",
    }
    state = protocol(3, ["columnMapping"]), metadata(json.dumps({"type": "struct", "fields": columns}), **properties)
    write_commit(tmp_path / "t", 0, *state, commit_info(operation="CREATE TABLE"))
    found = examined(tmp_path / "t")
    assert texts(found, "features") == ["ok columnMapping: supported"]
    assert texts(found, "key") == ["ok id: an identity column"]
    assert len(texts(found, "row ids")) == 1
    (retention,) = texts(found, "retention")
    assert retention.startswith("warn VACUUM keeps replaced files for 6 h, log cleanup keeps commits for 30 d: ")
    hazards = [each.partition(":")[0] for each in texts(found, "hazard")]
    assert hazards == [
        "note columns are mapped (mode name)",
        "note it has the constraints positive",
        "note column code is CHAR",
    ]
    assert texts(found, "cost") == ["note none of these commits changed a row"]
    assert check(tmp_path, found["configuration"])["pipelines"]["t"]["sink"]["key"] == ["id"]
