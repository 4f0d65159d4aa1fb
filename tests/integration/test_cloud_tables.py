"""Tables in Google Cloud Storage and Azure: recorded ones read as from the disk, the commands, and named errors."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.cloud.servers import CloudServer
from tests.support.cloud.tables import copied, download
from tests.support.daemon.commands import Orders, background, tailer, versions_and_ids, versions_delivered
from tests.support.follow import batches_of, follow, snapshot
from tests.support.oracle.recorded import CASES_DATA, HISTORIES, read
from tests.support.waiting import until

pytestmark = pytest.mark.stores

# Every table is read from S3; what differs here is the store, so a few tables with every kind of file are enough.
ARCHIVES = [
    min(HISTORIES.glob("*.tar.xz")),
    *(
        CASES_DATA / f"{name}.1.tar.xz"
        for name in (
            "partition_values_that_need_escapes",
            "unpaired_add_with_vector_via_restore",
            "vectors_on_a_file_with_many_row_groups",
            "widening_in_the_middle_of_the_range",
        )
    ),
]


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name.removesuffix(".tar.xz"))
def test_recorded_tables(archive: Path, tmp_path: Path, cloud: CloudServer) -> None:
    recorded = read(archive, tmp_path)
    remote = copied(recorded.path, cloud, cloud.new_bucket())
    local, found = follow(recorded.path, recorded.first), remote.follow(recorded.first)
    assert batches_of(found) == batches_of(local)
    assert [version.positions for version in found] == [version.positions for version in local]
    assert batches_of(remote.snapshot(recorded.last)) == batches_of([snapshot(recorded.path, recorded.last)])


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """Three versions of a local table."""
    return Orders(tmp_path / "orders").written()


@pytest.fixture
def by_environment(cloud: CloudServer, monkeypatch: pytest.MonkeyPatch) -> CloudServer:
    """The server, found by the variables of its cloud alone."""
    variables = {"endpoint": "AZURE_STORAGE_ENDPOINT" if cloud.is_azure else "GOOGLE_BASE_URL"}
    variables["service_account"] = "GOOGLE_SERVICE_ACCOUNT"
    for name, value in cloud.settings.items():
        monkeypatch.setenv(variables[name], value)
    return cloud


def test_the_commands_read_it(orders: Orders, by_environment: CloudServer) -> None:
    cloud = by_environment
    location = copied(orders.path, cloud, cloud.new_bucket()).location
    shown = tailer("tail", location, "--from", "earliest", "--to", "latest")
    assert (shown.returncode, versions_and_ids(shown.stdout)) == (0, [(0, 1), (0, 2), (1, 1), (2, 3)]), shown.stderr
    assert shown.stderr == f"{location}: changes of versions 0 to 2\n"
    plan = tailer("plan", location, "2", "--json")
    assert json.loads(plan.stdout)["tasks"][0]["uri"].startswith(f"{location}/")
    for command in (shown, plan):
        assert cloud.secret not in command.stdout + command.stderr


def test_a_clone_in_another_bucket_needs_permission(
    orders: Orders, tmp_path: Path, by_environment: CloudServer
) -> None:
    """A log that refers to the files of a table elsewhere by their URIs, as a shallow clone's does."""
    cloud = by_environment
    origin = copied(orders.path, cloud, cloud.new_bucket()).location
    clone = tmp_path / "clone" / "_delta_log"
    clone.mkdir(parents=True)
    for file in sorted((orders.path / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            for kind in action.keys() & {"add", "remove", "cdc"}:
                action[kind]["path"] = f"{origin}/{action[kind]['path']}"
        (clone / file.name).write_text("".join(json.dumps(action) + "\n" for action in actions))
    location = copied(clone.parent, cloud, cloud.new_bucket()).location
    refused = tailer("tail", location, "--from", "earliest", "--to", "latest")
    assert refused.returncode == 3
    assert f"{origin}/" in refused.stderr
    allowed = tailer("tail", location, "--from", "earliest", "--to", "latest", "--allow-root", origin)
    assert (allowed.returncode, versions_and_ids(allowed.stdout)) == (0, [(0, 1), (0, 2), (1, 1), (2, 3)]), (
        allowed.stderr
    )


def test_the_daemon_follows_it(orders: Orders, tmp_path: Path, cloud: CloudServer) -> None:
    """Rows and progress, the state table in the store as well; a restart goes on where it was."""
    bucket = cloud.new_bucket()
    location = copied(orders.path, cloud, bucket).location
    config = tmp_path / "tailer.toml"
    store = "".join(f'{name} = "{value}"\n' for name, value in cloud.settings.items())
    config.write_text(
        f'state_table = "{bucket}/state"\n[stores.here]\nprefix = "{bucket}"\n{store}'
        f'[pipelines.copy]\ntable = "{location}"\npoll_interval_s = 0.1\nsink = {{kind = "files", path = "copy"}}\n'
        f'[pipelines.screen]\ntable = "{location}"\npoll_interval_s = 0.1\n'
        'sink = {kind = "stdout", format = "jsonl"}\n'
        f'[pipelines.table]\ntable = "{location}"\nsink = {{kind = "delta", path = "{bucket}/copies/orders"}}\n'
    )
    connected = tailer("check", "--connect", "--config", config)
    assert connected.returncode == 0, connected.stdout
    assert connected.stdout.count(f"reached version 2 of {location}, and one of its files") == 3
    puts = [each.path for each in cloud.link.requests if each.method == "PUT" and "/copies/" in each.path]
    assert [path for path in puts if "/.lake-tailer-check-" not in path] == []
    seen = ""
    for version in (2, 3):
        if version == 3:
            orders.insert(4)
            copied(orders.path, cloud, bucket)
        with background("run", "--config", config) as daemon:
            until(lambda: versions_delivered(config) == [str(version)] * 3)  # noqa: B023 - called before the next round
            daemon.terminate()
            out, error = daemon.communicate(timeout=300)
        seen += out
        assert cloud.secret not in error
    expected = [(0, 1), (0, 2), (1, 1), (2, 3), (3, 4)]
    assert versions_and_ids(seen) == expected
    written = "".join(file.read_text() for file in sorted((tmp_path / "copy").rglob("[0-9]*.jsonl")))
    assert versions_and_ids(written) == expected
    download(cloud, f"{bucket}/copies/orders", tmp_path / "copies")
    rows = DeltaTable(tmp_path / "copies").to_pyarrow_table()
    assert sorted(zip(rows["_commit_version"].to_pylist(), rows["id"].to_pylist(), strict=True)) == expected


def error_lines(location: str, code: int, secret: str) -> tuple[str, str]:
    """Return the error and the hint of a command that must fail."""
    done = tailer("tail", location, "--from", "earliest", "--to", "latest")
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert secret not in done.stderr
    error, hint = done.stderr.splitlines()
    assert hint.startswith("hint: ")
    return error, hint


def test_a_missing_table_is_named(by_environment: CloudServer) -> None:
    location = f"{by_environment.new_bucket()}/nowhere"
    error, _ = error_lines(location, 3, by_environment.secret)
    assert error == f"error: {location}: not a Delta table: no commit in _delta_log"


def test_no_credentials_are_named(by_environment: CloudServer, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = by_environment.new_bucket()
    for name in ("AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    error, hint = error_lines(f"{bucket}/orders", 4, by_environment.secret)
    assert error.startswith(f"error: {bucket}/orders/")
    assert error.endswith("no credentials were found")
    assert "login" in hint


def test_a_wrong_container_account_or_key_is_named(azurite: CloudServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with azurite.logged_in(monkeypatch):
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", str(azurite.options.endpoint))
        bucket = azurite.new_bucket()
        error, _ = error_lines(azurite.location("nothing"), 4, azurite.secret)
        assert error.endswith("the container nothing of the account lakeaccount does not exist")
        error, hint = error_lines(bucket.replace("lakeaccount", "otheraccount"), 4, azurite.secret)
        assert "of the account otheraccount is denied (AuthorizationFailure)" in error
        assert "Storage Blob Data Reader" in hint
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaCBodXNo")
        error, hint = error_lines(bucket, 4, "aHVzaCBodXNo")
        assert "is denied (AuthorizationFailure), with the credentials found" in error


def test_another_way_to_write_a_location_is_named() -> None:
    error, hint = error_lines("az://lake/orders", 2, "hush")
    assert error.endswith("az:// is not a store that can be read")
    assert hint == "hint: Give abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER."
    error, hint = error_lines("abfss://lake@shop1.dfs.core.windows.net/orders?sig=hush", 2, "hush")
    assert error.endswith("holds credentials")
