"""A folder is a Delta table if its log has a version."""

from pathlib import Path

from tailer.formats.delta.folders import holds_table, table_around


def test_a_log_without_a_version_is_no_table(tmp_path: Path) -> None:
    log = tmp_path / "table" / "_delta_log"
    assert not holds_table(log.parent)
    log.mkdir(parents=True)
    (log / "_commit_1f0c.json.tmp").touch()
    (log / "notes.txt").touch()
    assert not holds_table(log.parent)
    (log / f"{7:020d}.json").touch()
    assert holds_table(log.parent)
    (tmp_path / "link").symlink_to(log.parent)
    assert table_around(tmp_path / "link" / "new" / "deeper") == log.parent
    assert table_around(log.parent) is None
