"""Values that `select` masks, and the key of a keyed hash, occur in nothing that a pipeline writes."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.daemon.commands import background, tailer
from tests.support.waiting import until

KEY: Final = "correct-horse-battery"
SECRETS: Final = [f"{name}-hidden-{row:02}" for name in ("mail", "card", "phone", "name", "note") for row in range(6)]
MASKS: Final = (
    "id, sha2(mail, 256) AS mail, hmac_sha256(card, 'env:MASK_KEY') AS card, NULL AS phone, 'hidden' AS name, "
    "concat('***', right(note, 4)) AS note"
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table whose second version deletes rows by rewriting a file: versions are compared."""
    columns = {
        name: [f"{name}-hidden-{row:02}" for row in range(6)] for name in ("mail", "card", "phone", "name", "note")
    }
    write_deltalake(tmp_path / "source", pa.table({"id": pa.array(range(6), pa.int64()), **columns}))
    DeltaTable(tmp_path / "source").delete("id = 2")
    return tmp_path / "source"


def leaked(*written: str | bytes) -> set[str]:
    """Return the secrets that occur in what was written."""
    texts = [each if isinstance(each, bytes) else each.encode() for each in written]
    return {secret for secret in (KEY, *SECRETS) if any(secret.encode() in text for text in texts)}


def test_a_daemon_writes_no_masked_value(table: Path, tmp_path: Path) -> None:
    """Rows, logs of everything, scratch files, `check` and `status`."""
    scratch, target, config = tmp_path / "scratch", tmp_path / "target", tmp_path / "tailer.toml"
    scratch.mkdir()
    config.write_text(
        f'[pipelines.masked]\ntable = "{table}"\nstart = "earliest"\npoll_interval_s = 0.1\n'
        f'compute_updates = true\nkey = ["id"]\nselect = """{MASKS}"""\n'
        f'sink = {{ kind = "files", path = "{target}" }}\n'
    )
    said = [tailer("check", config, MASK_KEY=KEY, TMPDIR=str(scratch))]
    with background("run", "--verbose", config, MASK_KEY=KEY, TMPDIR=str(scratch)) as daemon:
        until(
            lambda: daemon.poll() is not None or '"delete"' in "".join(f.read_text() for f in target.rglob("*.jsonl"))
        )
        assert daemon.poll() is None
        said.append(tailer("status", config, MASK_KEY=KEY, TMPDIR=str(scratch)))
        written = [file.read_bytes() for folder in (target, scratch) for file in folder.rglob("*") if file.is_file()]
        daemon.terminate()
        output = daemon.communicate()
    assert [each.returncode for each in said] == [0, 0]
    assert b"***" in b"".join(written)
    assert not leaked(*written, *filter(None, output), *(each.stdout + each.stderr for each in said))


@pytest.mark.parametrize("text", ["CAST(mail AS INT) AS n", "1 / (id - 2) AS n", "CAST(note AS DATE) AS n"])
def test_an_expression_that_fails_says_no_value(table: Path, text: str) -> None:
    done = tailer("tail", table, "--from", "0", "--to", "1", "--select", f"{MASKS}, {text}", MASK_KEY=KEY)
    assert done.returncode != 0
    assert text in done.stderr
    assert not leaked(done.stdout, done.stderr)
