"""Tables in S3: every recorded history and case, read from a server as from the disk; and the commands on them."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.daemon.commands import Orders, background, tailer, versions_and_ids, versions_delivered
from tests.support.follow import batches_of, follow, snapshot
from tests.support.oracle.recorded import CASES_DATA, HISTORIES, read
from tests.support.s3.link import Fault, S3Link
from tests.support.s3.server import S3Server
from tests.support.s3.tables import RemoteTable
from tests.support.waiting import until

pytestmark = pytest.mark.stores

ARCHIVES = [*sorted(HISTORIES.glob("*.tar.xz")), *sorted(CASES_DATA.glob("*.tar.xz"))]


@pytest.fixture(autouse=True)
def environment(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables with which every process here reaches the server."""
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name.removesuffix(".tar.xz"))
@pytest.mark.sampled(12)
def test_recorded_tables(archive: Path, tmp_path: Path, versitygw: S3Server) -> None:
    recorded = read(archive, tmp_path)
    remote = RemoteTable.copied(recorded.path, versitygw, versitygw.new_bucket())
    local, found = follow(recorded.path, recorded.first), remote.follow(recorded.first)
    assert batches_of(found) == batches_of(local)
    assert [version.positions for version in found] == [version.positions for version in local]
    pages = remote.snapshot(recorded.last)
    assert batches_of(pages) == batches_of([snapshot(recorded.path, recorded.last)])


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """Three versions of a local table."""
    return Orders(tmp_path / "orders").written()


def test_the_commands_read_it(orders: Orders, versitygw: S3Server) -> None:
    location = RemoteTable.copied(orders.path, versitygw, versitygw.new_bucket()).location
    shown = tailer("tail", location, "--from", "earliest", "--to", "latest")
    assert (shown.returncode, versions_and_ids(shown.stdout)) == (0, [(0, 1), (0, 2), (1, 1), (2, 3)])
    assert shown.stderr == f"{location}: changes of versions 0 to 2\n"
    net = tailer("tail", location, "--from", "earliest", "--to", "latest", "--net-changes")
    assert (net.returncode, versions_and_ids(net.stdout)) == (0, [(0, 2), (2, 3)])
    plan = tailer("plan", location, "2", "--json")
    assert json.loads(plan.stdout)["tasks"][0]["uri"].startswith(f"{location}/")
    history, doctor = tailer("history", location), tailer("doctor", location)
    inserted = [line.split("\t")[4] for line in history.stdout.splitlines()[1:]]
    assert (history.returncode, inserted) == (0, ["2", "0", "1"])
    assert (doctor.returncode, doctor.stdout.splitlines()[0]) == (0, f"{location}: a Delta table")
    for command in (shown, net, plan, history, doctor):
        assert versitygw.secret not in command.stdout + command.stderr


def test_the_daemon_follows_it(orders: Orders, tmp_path: Path, versitygw: S3Server) -> None:
    """Rows and progress, the state table in the store as well; a restart goes on where it was."""
    bucket = versitygw.new_bucket()
    location = RemoteTable.copied(orders.path, versitygw, bucket).location
    config = tmp_path / "tailer.toml"
    config.write_text(
        f'state_table = "s3://{bucket}/state"\n'
        f'[pipelines.copy]\ntable = "{location}"\npoll_interval_s = 0.1\nsink = {{kind = "files", path = "copy"}}\n'
        f'[pipelines.screen]\ntable = "{location}"\npoll_interval_s = 0.1\n'
        'sink = {kind = "stdout", format = "jsonl"}\n'
    )
    connected = tailer("check", "--connect", "--config", config)
    assert connected.returncode == 0
    assert connected.stdout.count(f"reached version 2 of {location}, and one of its files") == 2
    seen = ""
    for version in (2, 3):
        if version == 3:
            orders.insert(4)
            RemoteTable.copied(orders.path, versitygw, bucket)
        with background("run", "--config", config) as daemon:
            until(lambda: versions_delivered(config) == [str(version)] * 2)  # noqa: B023 - called before the next round
            daemon.terminate()
            out, error = daemon.communicate(timeout=300)
        seen += out
        assert "Unclosed" not in error
        assert versitygw.secret not in error
    expected = [(0, 1), (0, 2), (1, 1), (2, 3), (3, 4)]
    assert versions_and_ids(seen) == expected
    copied = "".join(file.read_text() for file in sorted((tmp_path / "copy").rglob("[0-9]*.jsonl")))
    assert versions_and_ids(copied) == expected


@pytest.mark.parametrize("denied", ["PUT", "DELETE"])
@pytest.mark.parametrize("kind", ["files", "delta", "state"])
def test_a_target_that_may_not_be_written_is_found(
    orders: Orders, tmp_path: Path, versitygw: S3Server, kind: str, denied: str
) -> None:
    """With the right to read alone; with all rights nothing is left behind."""
    bucket = versitygw.new_bucket()
    location = RemoteTable.copied(orders.path, versitygw, bucket).location
    target = f"s3://{bucket}/target"
    with S3Link(versitygw) as link:
        sink = f'kind = "{kind}"\npath = "{target}"' if kind != "state" else 'kind = "stdout"\nformat = "jsonl"'
        config = tmp_path / "tailer.toml"
        config.write_text(
            (f'state_table = "{target}"\n' if kind == "state" else "")
            + f'[stores.lake]\nprefix = "s3://{bucket}"\nendpoint = "{link.endpoint}"\n'
            + f'[pipelines.copy]\ntable = "{location}"\n[pipelines.copy.sink]\n{sink}\n'
        )
        assert tailer("check", "--connect", "--config", config).returncode == 0
        assert "target" not in str(versitygw.client.list_objects_v2(Bucket=bucket)["Contents"])
        link.faults.append(Fault(lambda request: request.method == denied, 99, 403, "AccessDenied"))
        refused = tailer("check", "--connect", "--config", config)
    assert refused.returncode != 0
    assert f"{target}/.lake-tailer-check-" in refused.stdout
    assert "AccessDenied" in refused.stdout


@pytest.mark.parametrize(
    ("variables", "place", "code", "error"),
    [
        ({}, "s3://{bucket}/nowhere", 3, "not a Delta table: no commit in _delta_log"),
        ({}, "s3://no-such-bucket/orders", 4, "the bucket no-such-bucket does not exist"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "s3://{bucket}/orders", 4, "SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "wrong"}, "s3://{bucket}/orders", 4, "does not know the access key"),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
            "s3://{bucket}/orders",
            4,
            "no credentials were found",
        ),
        ({"AWS_PROFILE": "nobody"}, "s3://{bucket}/orders", 4, "the profile of AWS_PROFILE does not exist"),
    ],
)
def test_what_is_wrong_is_named(
    orders: Orders,
    versitygw: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    variables: Mapping[str, str],
    place: str,
    code: int,
    error: str,
) -> None:
    bucket = versitygw.new_bucket()
    RemoteTable.copied(orders.path, versitygw, bucket)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = tailer("tail", place.format(bucket=bucket), "--from", "earliest", "--to", "latest")
    assert (done.returncode, done.stdout) == (code, "")
    first, hint = done.stderr.splitlines()[-2:]
    assert first.startswith("error: s3://")
    assert error in first
    assert hint.startswith("hint: ")
    assert versitygw.secret not in done.stderr
