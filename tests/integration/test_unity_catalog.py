"""Tables managed by Unity Catalog: commits of Delta Kernel, followed row by row; and refusals.

The catalog is `tests.support.servers.unity_catalog`. Delta's own client stages, ratifies and publishes commits where
possible. Other cases are written by hand: a catalog that contradicts the folder, missing files, changing tables.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tailer.config.options import read_options
from tailer.engine.local import LocalEngine
from tailer.errors import (
    ConfigError,
    StorageAccessRefused,
    StorageUnavailable,
    TableReplaced,
    UnsupportedFeature,
    VersionAhead,
)
from tailer.events import CHANGE_TYPE
from tailer.formats.delta.catalog.options import UnityOptions
from tailer.formats.delta.catalog.unity import UnityCatalog
from tailer.formats.delta.table import DeltaTableLog
from tailer.start import Start
from tailer.stores.local import LocalStore
from tests.support.servers.unity_catalog import UnityServer, serving
from tests.support.tables.log_files import add, commit_info, metadata, parquet, protocol, remove, write_commit

NAME = "main.sales.orders"
TOKEN = "open-sesame"
Row = tuple[int, str, Any]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[UnityServer]:
    with serving(tmp_path / "catalog") as server:
        yield server


def client(server: UnityServer, **options: Any) -> UnityCatalog:
    return UnityCatalog(read_options("catalog", {"uri": server.uri, "table": NAME} | options, UnityOptions))


async def rows(log: DeltaTableLog, first: int | None = None) -> list[Row]:
    """Return (version, change, a) of all rows from `first` on (None: from the end of the last read)."""
    found: list[Row] = []
    if first is not None:
        await log.seek(first)
    while (plan := await log.next_plan()) is not None:
        async with LocalEngine().run([plan], None) as batches:
            async for batch in batches:
                columns = (batch.rows.column(name).to_pylist() for name in (CHANGE_TYPE, "a"))
                found += [(batch.version, *values) for values in zip(*columns, strict=True)]
    return found


class Managed:
    """A catalog-managed table by hand: `a: long`, in-commit timestamps, one file a commit."""

    def __init__(self, server: UnityServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        features = protocol(3, ["catalogManaged"])
        features["protocol"]["writerFeatures"] = ["catalogManaged", "inCommitTimestamp"]
        setting = {"delta.enableInCommitTimestamps": "true"}
        write_commit(folder, 0, commit_info(inCommitTimestamp=1000), features, metadata(**setting))
        server.add(NAME, folder)

    def actions(self, version: int, *values: int, deletes: int | None = None) -> list[str]:
        """Make the commit of `version`, which inserts rows and deletes those of version `deletes`."""
        path = parquet(self.folder / f"{version}-{values[0]}.parquet", pa.table({"a": pa.array(values, pa.int64())}))
        lines = [commit_info(inCommitTimestamp=1000 + version), add(path.name, size=path.stat().st_size)]
        if deletes is not None:
            lines.append(remove(f"{deletes}-{deletes * 10}.parquet", size=1))
        return [json.dumps(line) for line in lines]

    def stage(self, version: int, *values: int, deletes: int | None = None, of: str = "a") -> Path:
        """Write a commit that is not ratified."""
        path = self.folder / "_delta_log" / "_staged_commits" / f"{version:020d}.{of * 8}-0000-4000-8000-{of * 12}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(self.actions(version, *values, deletes=deletes)) + "\n")
        return path

    def commit(self, version: int, *values: int, deletes: int | None = None) -> Path:
        """Stage and ratify."""
        path = self.stage(version, *values, deletes=deletes)
        self.server.ratify(NAME, version, path.name, 1000 + version)
        return path

    def publish(self, version: int, *values: int) -> None:
        """Write `version` into the log, whatever the catalog says."""
        write_commit(self.folder, version, *self.actions(version, *values))

    def log(self, **options: Any) -> DeltaTableLog:
        """Return the table's log."""
        return DeltaTableLog(LocalStore(self.folder), catalog=client(self.server, **options))


@pytest.fixture
def managed(catalog: UnityServer, tmp_path: Path) -> Managed:
    return Managed(catalog, tmp_path / "orders")


class Kernel:
    """Delta Kernel as a client of the catalog, inside Spark's JVM."""

    def __init__(self, spark: SparkSession, server: UnityServer) -> None:
        jvm: Any = spark._jvm
        self.jvm, self.delta = jvm, jvm.io.delta.kernel
        commits = jvm.io.delta.storage.commit
        settings = {"uri": server.uri, "token": TOKEN, "credentialVending.enabled": "false"}
        rest = commits.uccommitcoordinator.UCDeltaTokenBasedRestClient(settings, None)
        names = spark.sparkContext._gateway.new_array(jvm.java.lang.String, 2)  # type: ignore[union-attr]
        names[0], names[1], table = NAME.split(".")
        staging = rest.createStagingTable(commits.TableIdentifier(names, table))
        self.id, self.location = staging.getTableId().toString(), staging.getLocation()
        self.folder = Path(self.location.removeprefix("file://"))
        self.name = self.delta.unitycatalog.UCTableIdentifier(*NAME.split("."))
        self.client = self.delta.unitycatalog.UCCatalogManagedClient(rest)
        self.engine = self.delta.defaults.engine.DefaultEngine.create(spark._jsc.hadoopConfiguration())
        schema = self.delta.types.StructType().add("a", self.delta.types.LongType.LONG)
        create = self.client.buildCreateTableTransaction(self.id, self.location, schema, "tests", self.name)
        create.build(self.engine).commit(self.engine, self.delta.utils.CloseableIterable.emptyIterable())

    @property
    def snapshot(self) -> Any:
        """Return the table as Kernel finds it through the catalog."""
        nothing = self.jvm.java.util.Optional.empty()
        return self.client.loadSnapshot(self.engine, self.id, self.location, self.name, nothing, nothing)

    def append(self, *values: int) -> int:
        """Commit rows; return the version."""
        path = self.folder / f"{values[0]}.parquet"
        pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path)
        files = self.jvm.java.util.ArrayList()
        nothing = self.jvm.java.util.Optional.empty()
        files.add(self.delta.utils.DataFileStatus(path.as_uri(), path.stat().st_size, 1, nothing))
        write = self.snapshot.buildUpdateTableTransaction("tests", self.delta.Operation.WRITE).build(self.engine)
        state, kernel = write.getTransactionState(self.engine), self.delta.Transaction
        context = kernel.getWriteContext(self.engine, state, {})
        written = self.delta.internal.util.Utils.toCloseableIterator(files.iterator())
        actions = kernel.generateAppendActions(self.engine, state, written, context)
        done = write.commit(self.engine, self.delta.utils.CloseableIterable.inMemoryIterable(actions))
        return int(done.getVersion())

    def timestamp_ms(self) -> int:
        """Return the time of the latest version."""
        return int(self.snapshot.getTimestamp(self.engine))


def test_commits_of_delta_kernel_are_followed(spark: SparkSession, catalog: UnityServer) -> None:
    catalog.token = TOKEN
    kernel = Kernel(spark, catalog)
    log = DeltaTableLog(LocalStore(kernel.folder), catalog=client(catalog, token=TOKEN))
    assert [kernel.append(10, 11), kernel.append(20, 21)] == [1, 2]
    expected: list[Row] = [(1, "insert", 10), (1, "insert", 11), (2, "insert", 20), (2, "insert", 21)]

    assert published(kernel.folder) == [0], "versions 1 and 2 are only staged"
    assert anyio.run(rows, log, 0) == expected
    assert anyio.run(log.latest) == kernel.snapshot.getVersion() == 2

    kernel.snapshot.publish(kernel.engine)
    assert published(kernel.folder) == [0, 1, 2], "and the catalog names them still"
    assert anyio.run(rows, log, 0) == expected

    # With this commit Kernel reports its published commits to the catalog.
    assert kernel.append(30) == 3
    assert published(kernel.folder) == [0, 1, 2]
    assert anyio.run(rows, log) == [(3, "insert", 30)], "where the last reading ended"
    assert anyio.run(rows, log, 0) == [*expected, (3, "insert", 30)]
    anyio.run(log.seek, 3)
    plan = anyio.run(log.next_plan)
    assert plan is not None
    assert plan.timestamp_ms == kernel.timestamp_ms()


def published(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in (folder / "_delta_log").glob("*.json"))


@pytest.mark.anyio
async def test_the_commit_that_the_catalog_names_is_the_one(managed: Managed) -> None:
    managed.commit(1, 10)
    managed.commit(2, 20, deletes=1)
    managed.stage(2, 666, of="b")  # lost to the other commit
    managed.stage(3, 667)  # not ratified
    managed.publish(1, 668)  # not the commit that the catalog names
    managed.publish(3, 669)  # after the catalog's latest version
    managed.publish(4, 670)
    log = managed.log()
    assert await rows(log, 0) == [(1, "insert", 10), (2, "delete", 10), (2, "insert", 20)]
    assert await log.latest() == 2
    assert (await log.resolve(Start.parse("latest"))).version == 3
    assert (await log.resolve(Start.parse("1970-01-01T00:00:01.002Z"))).version == 2
    assert [plan.version async for plan in log.snapshot_plans(2)] == [2]
    with pytest.raises(VersionAhead):
        await log.seek(4)


@pytest.mark.anyio
async def test_after_a_corrupt_checkpoint_too_only_the_catalog_counts(managed: Managed) -> None:
    for version in range(1, 121):
        write_commit(managed.folder, version, commit_info(inCommitTimestamp=1000 + version))
    log = managed.folder / "_delta_log"
    (log / f"{110:020d}.checkpoint.parquet").write_bytes(b"PAR1 is all there is")
    (log / "_last_checkpoint").write_text('{"version": 110, "size": 1}')
    managed.server.add(NAME, managed.folder, 118)
    managed.commit(119, 10)
    managed.publish(120, 666)
    assert await rows(managed.log(), 119) == [(119, "insert", 10)]
    managed.commit(120, 20)
    assert await rows(managed.log(), 120) == [(120, "insert", 20)]
    assert await rows(managed.log(), 121) == []


@pytest.mark.anyio
async def test_without_its_catalog_the_table_is_refused(managed: Managed) -> None:
    with pytest.raises(UnsupportedFeature) as refused:
        await DeltaTableLog(LocalStore(managed.folder)).seek(1)
    assert refused.value.feature == "reader feature catalogManaged"
    assert "catalog" in refused.value.reason
    with pytest.raises(UnsupportedFeature):
        await rows(DeltaTableLog(LocalStore(managed.folder)), 0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b'{"error": {"message": "m", "type": "InternalServerErrorException", "code": 500}}'),
        (503, b"<html>maintenance</html>"),
        (429, b"{}"),
        (200, b"<html>Sign in</html>"),
        (200, b"\xff"),
        (200, b'{"metadata": {}}'),
        (200, b'{"metadata": {"table-type": "MANAGED", "table-uuid": "u", "location": 1}}'),
    ],
)
async def test_an_answer_that_is_none_is_asked_for_again(managed: Managed, status: int, body: bytes) -> None:
    log = managed.log()
    managed.server.broken = (status, body)
    with pytest.raises(StorageUnavailable):
        await log.seek(1)
    managed.server.broken = None
    managed.commit(1, 10)
    assert await rows(log, 1) == [(1, "insert", 10)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "kind", "reason", "hint"),
    [
        ({"table": "main.sales.nothing"}, ConfigError, "does not have this table", "catalog.schema.table"),
        ({}, StorageAccessRefused, "requires a token", "Give token in the environment, or by a file"),
        ({"token": "wrong"}, StorageAccessRefused, "does not accept the token", "Correct token; "),
    ],
)
async def test_refusals_of_the_catalog_have_a_hint(
    managed: Managed, options: dict[str, str], kind: type[ConfigError | StorageAccessRefused], reason: str, hint: str
) -> None:
    managed.server.token = "" if "table" in options else TOKEN
    with pytest.raises(kind) as refused:
        await managed.log(**options).seek(1)
    assert reason in str(refused.value)
    assert hint in refused.value.hint
    assert "wrong" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        (403, StorageAccessRefused, "denies access"),
        (404, ConfigError, "no Delta API"),
        (302, ConfigError, "answers 302"),
        (400, ConfigError, "answers 400"),
    ],
)
async def test_answers_of_another_api_are_errors(
    managed: Managed, status: int, kind: type[ConfigError | StorageAccessRefused], reason: str
) -> None:
    managed.server.broken = (status, b"<html>" + TOKEN.encode())
    with pytest.raises(kind) as refused:
        await managed.log(token=TOKEN).seek(1)
    assert reason in str(refused.value)
    assert TOKEN not in f"{refused.value} {refused.value.hint}"


@pytest.mark.anyio
async def test_a_table_that_the_catalog_only_knows_needs_no_catalog(managed: Managed) -> None:
    managed.server.add(NAME, managed.folder, None, "EXTERNAL")
    with pytest.raises(ConfigError, match="does not manage its commits"):
        await managed.log().seek(1)


@pytest.mark.anyio
async def test_the_catalog_must_mean_the_table_that_is_followed(managed: Managed, tmp_path: Path) -> None:
    link = tmp_path / "a link"
    link.symlink_to(managed.folder)
    managed.server.add(NAME, link)
    await managed.log().seek(1)
    managed.server.add(NAME, tmp_path / "another")
    with pytest.raises(ConfigError, match="another"):
        await managed.log().seek(1)


@pytest.mark.anyio
async def test_a_table_that_was_dropped_and_made_again_is_another(managed: Managed) -> None:
    log = managed.log()
    managed.commit(1, 10)
    assert await rows(log, 1) == [(1, "insert", 10)]
    managed.server.add(NAME, managed.folder, 2)
    with pytest.raises(TableReplaced) as replaced:
        await log.next_plan()
    assert replaced.value.expected_id != replaced.value.found_id


@pytest.mark.anyio
async def test_the_token_is_read_from_its_file_for_every_question(managed: Managed, tmp_path: Path) -> None:
    file = tmp_path / "token"
    log = managed.log(token={"file": str(file)})
    managed.server.token = TOKEN
    with pytest.raises(ConfigError, match="cannot be read"):
        await log.seek(1)
    file.write_text("two words\n")
    with pytest.raises(ConfigError, match="gives no token"):
        await log.seek(1)
    file.write_text(f"{TOKEN}\n")
    await log.seek(1)
    managed.server.token = "renewed"
    with pytest.raises(StorageAccessRefused, match="does not accept"):
        await log.latest()
    file.write_text("renewed")
    assert await log.latest() == 0


@pytest.mark.anyio
async def test_a_command_for_the_token_runs_again_when_it_is_refused(managed: Managed, tmp_path: Path) -> None:
    runs, held = tmp_path / "runs", tmp_path / "held"
    held.write_text(f"{TOKEN}\n")
    log = managed.log(token={"command": ["sh", "-c", 'echo >> "$0"; cat "$1"', str(runs), str(held)]})
    managed.server.token = TOKEN
    await log.seek(1)
    assert await log.latest() == 0
    assert len(runs.read_text()) == 1
    managed.server.token = "renewed"
    with pytest.raises(StorageAccessRefused, match="does not accept"):
        await log.latest()
    held.write_text("renewed")
    assert await log.latest() == 0
    assert await log.latest() == 0
    assert len(runs.read_text()) == 3
    held.write_text("two words")
    managed.server.token = "another"
    with pytest.raises(ConfigError, match="the command sh gives no token"):
        await log.latest()
    broken = managed.log(token={"command": ["sh", "-c", "exit 3", TOKEN]})
    with pytest.raises(StorageUnavailable, match="the command sh ended with exit code 3") as failed:
        await broken.seek(1)
    assert TOKEN not in f"{failed.value}{failed.value.hint}"


@pytest.mark.anyio
async def test_a_catalog_that_hangs_is_not_waited_for(managed: Managed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailer.formats.delta.catalog.unity.ANSWER_WITHIN_S", 0.2)
    log = managed.log()
    with managed.server.held(), pytest.raises(StorageUnavailable, match="in time"):
        await log.seek(1)


@pytest.mark.anyio
async def test_the_address_may_name_the_api(managed: Managed) -> None:
    for uri in (f"{managed.server.uri}/", f"{managed.server.uri}/api/2.1/unity-catalog/"):
        await managed.log(uri=uri).seek(1)
