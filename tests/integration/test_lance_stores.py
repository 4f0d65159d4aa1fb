"""Lance datasets in S3: the same changes as from a local disk, with the login of the store."""

from functools import partial
from pathlib import Path

import anyio
import lance
import pytest

import tailer
from tailer.config.pipelines import TablePattern
from tailer.daemon.fleet.discovery import find_tables
from tailer.errors import NotATable
from tailer.stores.stores import Stores
from tests.support.daemon.commands import tailer as command
from tests.support.s3.link import S3Link
from tests.support.s3.server import S3Server
from tests.support.s3.tables import RemoteTable
from tests.support.tables.lance_histories import LanceHistory, changes_of

pytestmark = pytest.mark.stores


def test_changes_from_s3(versitygw: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two histories, in a bucket that takes the login from the environment."""
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    for seed in (3, 4):
        history = LanceHistory(tmp_path / f"{seed}.lance", seed, stable=seed == 4)
        history.grow(15)
        remote = RemoteTable.copied(history.path, versitygw, versitygw.new_bucket())
        assert changes_of(tailer.changes(remote.location)) == changes_of(tailer.changes(history.path))


def test_only_files_are_asked_for(versitygw: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task has the location of the dataset, at which there is no object."""
    history = LanceHistory(tmp_path / "t.lance", 6, stable=False)
    history.grow(6)
    remote = RemoteTable.copied(history.path, versitygw, versitygw.new_bucket())
    with S3Link(versitygw) as link:
        for name, value in {**versitygw.environment, "AWS_ENDPOINT_URL": link.endpoint}.items():
            monkeypatch.setenv(name, value)
        assert changes_of(tailer.changes(remote.location)) == changes_of(tailer.changes(history.path))
        assert len(link.requests) > 6
        assert [each.path for each in link.requests if each.path.endswith("t.lance")] == []


def test_a_dataset_without_the_usual_name(versitygw: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its format is named, or a template's is."""
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    history = LanceHistory(tmp_path / "t", 5, stable=True)
    history.grow(6)
    bucket = versitygw.new_bucket()
    remote = RemoteTable.copied(history.path, versitygw, bucket)
    with pytest.raises(NotATable) as error:
        list(tailer.changes(remote.location))
    assert "in a store the format must be given" in error.value.hint
    assert changes_of(tailer.changes(remote.location, table_format="lance")) == changes_of(tailer.changes(history.path))
    pattern = TablePattern.parse(f"{remote.location.rpartition('/')[0]}/*")
    assert pattern is not None
    found = anyio.run(partial(find_tables, pattern, Stores(), table_format="lance"))
    assert pattern.match(remote.location) in found.tables


def test_wrong_keys_are_named_and_not_shown(
    versitygw: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**versitygw.environment, "AWS_SECRET_ACCESS_KEY": "not+the+secret"}.items():
        monkeypatch.setenv(name, value)
    lance.write_dataset(LanceHistory(tmp_path / "a", 1, stable=False).open().to_table(), tmp_path / "t.lance")
    remote = RemoteTable.copied(tmp_path / "t.lance", versitygw, versitygw.new_bucket())
    done = command("tail", remote.location, "--from", "earliest", "--to", "latest")
    assert done.returncode == 4
    assert "SignatureDoesNotMatch" in done.stderr
    assert "not+the+secret" not in done.stderr
