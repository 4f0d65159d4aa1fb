"""The demonstration of `make demo`: the proof succeeds, can fail, and leaves no files or processes.

On every landing: the demonstration itself, in this module.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

import tailer as tailer_api
from examples.demo.lance_shop import LanceShop
from examples.demo.proof import judge
from tests.support.spark.session import delta_jars

ROOT: Final = Path(__file__).resolve().parents[2]
DEMO: Final = (sys.executable, "-m", "examples.demo")
SHORT: Final = (
    "import sys; from rich.console import Console; from examples.demo.stage import play\n"
    "sys.exit(not play(Console(), rounds=1))"
)


def environment(temporary: Path, **variables: str) -> dict[str, str]:
    """Our environment with the jars, and all temporary files in one folder."""
    return os.environ | {"LAKE_TAILER_JARS": str(delta_jars()[0].parent), "TMPDIR": str(temporary)} | variables


def demo(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the demonstration to its end; `variables` are added to its environment."""
    return subprocess.run(
        [*DEMO, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=os.environ | variables,
    )


def left_behind(folder: Path) -> list[str]:
    """Return files and processes that refer to a folder."""
    files = [str(path) for path in folder.rglob("*") if path.name.startswith("lake-tailer-demo")]
    processes = [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or ())
    ]
    return files + processes


@pytest.mark.spark
def test_the_daemon_is_killed_and_spark_finds_every_change_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHORT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=environment(tmp_path),
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert any("kill -9" in line for line in lines)
    assert any("started again" in line for line in lines)
    assert lines[-1] == "PROVED: every change was delivered, exactly once"
    assert left_behind(tmp_path) == []


def test_a_lance_dataset_is_proved_without_spark(tmp_path: Path) -> None:
    script = SHORT.replace("rounds=1", "rounds=1, of_lance=True")
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert any("kill -9; Lance goes on without it" in line for line in lines)
    assert lines[-1] == "PROVED: every change was delivered, exactly once"
    assert left_behind(tmp_path) == []


def test_the_proof_of_a_lance_dataset_can_fail(tmp_path: Path) -> None:
    """A copy of the changes that is right, one that lacks a row, and one that has a row twice."""
    shop = LanceShop(tmp_path / "orders", 1)
    shop.open()
    assert [commit.operation for commit in shop.trade()].count("merge") == 1
    changes = tailer_api.changes(tmp_path / "orders").to_arrow()
    lacking, doubled = changes.slice(1), pa.concat_tables([changes, changes.slice(0, 1)])
    verdicts = []
    for number, rows in enumerate((changes, lacking, doubled)):
        write_deltalake(copy := tmp_path / str(number), rows)
        verdicts.append(shop.judge(copy))
    assert [verdict.proved for verdict in verdicts] == [True, False, False]
    assert (verdicts[1].missing, verdicts[1].lacking) == (1, 1)
    assert (verdicts[2].unexpected, verdicts[2].left_over) == (1, 1)


def test_missing_requirements_are_named_with_the_install_command(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('No module named pyspark')")
    (tmp_path / "jars").mkdir()
    no_spark = demo(PYTHONPATH=str(tmp_path))
    assert no_spark.returncode == 2
    assert "No module named pyspark" in no_spark.stderr
    assert "hint: Install it: pip install 'lake-tailer[spark,delta]'" in no_spark.stderr
    no_java = demo(PATH=str(tmp_path), JAVA_HOME="")
    assert no_java.returncode == 2
    assert "hint: Install Java 17 or newer" in no_java.stderr
    no_jars = demo(LAKE_TAILER_JARS=str(tmp_path / "jars"))
    assert no_jars.returncode == 2
    assert f"error: LAKE_TAILER_JARS: no jars in {tmp_path / 'jars'}" in no_jars.stderr
    assert demo("--help", PYTHONPATH=str(tmp_path)).returncode == 0


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a change feed and a few versions."""
    path = tmp_path_factory.mktemp("proof") / "orders"
    feed = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT, name STRING) USING delta {feed}")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 'a'), (2, NULL), (2, NULL), (3, 'c')")
    spark.sql(f"UPDATE delta.`{path}` SET name = 'b' WHERE id = 1")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 3")
    return path


@pytest.mark.parametrize(
    ("spoil", "missing", "unexpected", "lacking", "left_over"),
    [
        (lambda rows: rows, 0, 0, 0, 0),
        (lambda rows: rows.where("_change_type != 'delete'"), 1, 0, 0, 1),
        (lambda rows: rows.union(rows.where("id = 1 AND _change_type = 'insert'")), 0, 1, 0, 1),
        (lambda rows: rows.dropDuplicates(), 1, 0, 1, 0),
        (lambda rows: rows.withColumn("_commit_version", rows["_commit_version"] + 1), 7, 7, 0, 0),
    ],
)
@pytest.mark.nightly
def test_the_proof_finds_what_is_wrong(
    spark: SparkSession,
    history: Path,
    tmp_path: Path,
    spoil: Callable[[DataFrame], DataFrame],
    missing: int,
    unexpected: int,
    lacking: int,
    left_over: int,
) -> None:
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(str(history))
    # Delta reserves these names in a table with a feed; in other tables they are ordinary columns.
    spoil(feed).write.format("delta").save(str(tmp_path / "copy"))
    verdict = judge(spark, history, tmp_path / "copy")
    assert (verdict.missing, verdict.unexpected, verdict.lacking, verdict.left_over) == (
        missing,
        unexpected,
        lacking,
        left_over,
    )
    assert verdict.proved == (not (missing or unexpected or lacking or left_over))


def test_temporary_files_are_where_the_test_looks(tmp_path: Path) -> None:
    script = "import tempfile; print(tempfile.gettempdir())"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment(tmp_path)
    )
    assert done.stdout.strip() == str(tmp_path) != tempfile.gettempdir()
