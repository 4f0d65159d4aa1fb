"""Tables of public projects: each is followed from its start and right at every version, or refused for a reason.

delta-rs or pylance reads the rows of each version. Where delta-rs cannot, Spark has read them (`SPARK_DECIDES`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import lance
import pyarrow as pa
import pytest

import tailer
from tailer.errors import (
    FileOutsideTable,
    FileVacuumed,
    LogCorrupt,
    NotATable,
    TailerError,
    UnsupportedFeature,
    VersionGone,
)
from tests.support.oracle.public import SPARK_DECIDES, read_answers, unpack_public
from tests.support.oracle.rows import Rows, delta_rs_snapshot, rows_of
from tests.support.oracle.whole_table import check_folds, check_snapshot, commits, deliver

pytestmark = pytest.mark.golden

# How many tables each folder of the archive holds.
GROUPS: Final = {
    "delta-golden": 67,
    "delta-kernel-defaults": 7,
    "delta-rs": 35,
    "delta-rs-err-logs": 9,
    "delta-spark-resources": 11,
    "dremio": 21,
    "duckdb-delta": 5,
    "kernel-rs": 17,
    "lance": 8,
    "trino": 139,
}


@dataclass(frozen=True)
class Refusal:
    """Tables that must end with an error, and why."""

    error: type[TailerError]
    why: str
    names: tuple[str, ...]


REFUSED: Final = (
    Refusal(
        LogCorrupt,
        "no metaData has a schema: Spark refuses it (DELTA_READ_TABLE_WITHOUT_COLUMNS or DELTA_STATE_RECOVER_ERROR)",
        (
            "delta-golden/canonicalized-paths-normal-a",
            "delta-golden/canonicalized-paths-normal-b",
            "delta-golden/canonicalized-paths-special-b",
            "delta-golden/corrupted-last-checkpoint",
            "delta-golden/deltalog-commit-info",
            "delta-golden/deltalog-state-reconstruction-from-checkpoint-missing-metadata",
            "delta-golden/deltalog-state-reconstruction-from-checkpoint-missing-protocol",
            "delta-golden/update-deleted-directory",
        ),
    ),
    Refusal(
        LogCorrupt,
        "no protocol or no metaData in the log: Spark refuses it (DELTA_STATE_RECOVER_ERROR)",
        (
            "delta-golden/deltalog-state-reconstruction-without-metadata",
            "delta-golden/deltalog-state-reconstruction-without-protocol",
            "trino/statistics/basic_multi_file",
            "trino/statistics/infinity_nan",
            "trino/statistics/nan",
            "trino/statistics/nan_multi_file",
            "trino/statistics/negative_infinity",
            "trino/statistics/negative_infinity_nan",
            "trino/statistics/negative_zero",
            "trino/statistics/positive_infinity",
            "trino/statistics/zero_infinity",
            "trino/statistics/zero_nan",
            "trino/statistics/zero_negative_infinity",
        ),
    ),
    Refusal(
        LogCorrupt,
        "the checkpoint was made by hand, and there is no commit: Spark refuses it",
        ("dremio/malformedMetadata", "dremio/multibatchCheckpointWithRemove"),
    ),
    Refusal(
        LogCorrupt,
        "text after the JSON, which a strict reader of JSON does not accept; Spark ignores it in some of these",
        (
            "trino/databricks73/person",
            "trino/databricks73/person_test_pruning",
            "trino/databricks73/person_without_checkpoints",
            "trino/databricks73/person_without_last_checkpoint",
            "trino/databricks73/person_without_old_jsons",
            "trino/databricks73/pruning/invalid_log",
        ),
    ),
    Refusal(
        UnsupportedFeature,
        "a feature or a type that Spark refuses, too",
        (
            "delta-rs-err-logs/table_d",
            "delta-rs-err-logs/table_e",
            "delta-rs-err-logs/table_f",
            "kernel-rs/table-with-geo",
            "trino/deltalake/type_widening_unsupported",
        ),
    ),
    Refusal(
        VersionGone,
        "a checkpoint and no commit, so there are no changes: Spark refuses it, too",
        (
            "delta-rs/table-with-domain-metadata",
            "dremio/multi_partitioned_remove_only_checkpoint",
            "trino/statistics/parquet_struct_statistics",
            "trino/statistics/parquet_struct_statistics_nan",
            "trino/statistics/parquet_struct_statistics_null_count",
        ),
    ),
    Refusal(
        NotATable,
        "no commit at all: Spark refuses it (DELTA_TABLE_NOT_FOUND)",
        ("trino/statistics/extended_stats_with_data_size", "trino/statistics/extended_stats_without_data_size"),
    ),
    Refusal(
        FileOutsideTable,
        "a shallow clone, whose files are in another table",
        (
            "trino/deltalake/clone_merge/clone_merge_cloned",
            "trino/deltalake/clone_merge/clone_merge_deletion_vector_cloned",
        ),
    ),
    Refusal(
        FileVacuumed,
        "a data file of the first commits is not in the archive: its project does not have it, or has it elsewhere",
        (
            "delta-golden/checkpoint",
            "delta-golden/snapshot-vacuumed",
            "delta-kernel-defaults/spark-variant-stable-feature-checkpoint",
            "delta-rs/checkpoint_with_partitions",
            "delta-rs/checkpoints",
            "delta-rs/checkpoints_vacuumed",
            "delta-rs/latest_not_checkpointed",
            "delta-rs/with_checkpoint_no_last_checkpoint",
            "delta-rs-err-logs/table_a",
            "delta-rs-err-logs/table_b",
            "delta-rs-err-logs/table_c",
            "delta-rs-err-logs/table_g",
            "delta-rs-err-logs/table_h",
            "delta-rs-err-logs/table_i",
            "dremio/ctasNoSchemaMetadata",
            "dremio/emptyDataFilesNoStatsParsed",
            "dremio/extraAttrsRemovePath",
            "dremio/multipartCheckpointSkips",
            "dremio/repartitioned",
            "kernel-rs/table-with-cdf",
            "lance/v0.30.0_pre_created_at/index_without_created_at",
            "lance/v0.5.9/dataset_with_fragments",
            "trino/databricks154/clone_checkpoint_version_zero/checkpoint_v2/shallow_cloned_table",
            "trino/databricks73/read_timestamps",
        ),
    ),
)
REFUSAL_OF: Final = {name: refusal for refusal in REFUSED for name in refusal.names}

# No reader takes its first version, which has no schema yet; it never has a row.
WITHOUT_ROWS: Final = "delta-rs/delta-live-table"

# Logs without their first commits, and the first version whose changes can be read. delta-rs and Spark do not read the
# version before it.
CLEANED: Final = {
    "dremio/test_v3_checkpoint": 10,
    "trino/databricks104/json_stats_on_row_type": 2,
    "trino/deltalake/v2_checkpoint_json_using_temporal": 2,
    "trino/deltalake/v2_checkpoint_parquet_using_temporal": 2,
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every table by its name."""
    return unpack_public(tmp_path_factory.mktemp("public"))


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[int, pa.Table]]:
    """Spark's rows of the tables that delta-rs cannot judge."""
    return read_answers()


def states(path: Path, answer: dict[int, pa.Table] | None, versions: range) -> Iterator[tuple[int, Rows]]:
    """Read the rows of some versions without lake-tailer."""
    for version in versions:
        if answer is not None:
            yield version, rows_of(answer[version])
        elif path.joinpath("_versions").is_dir():
            yield version, rows_of(lance.dataset(path, version=version).to_table())
        else:
            yield version, delta_rs_snapshot(path, version)


def check(name: str, path: Path, answer: dict[int, pa.Table] | None) -> None:
    """Check what a table delivers, and the error that it ends with, if it must."""
    if name == WITHOUT_ROWS:
        assert tailer.changes(path).to_arrow().num_rows == 0
        return
    delivered = deliver(path)
    refusal = REFUSAL_OF.get(name)
    first = CLEANED.get(name, 1 if path.joinpath("_versions").is_dir() else 0)
    if refusal is not None:
        last = max(delivered.versions, default=first - 1)
    elif delivered.error is not None:
        raise delivered.error
    else:
        last = commits(path)[-1]
    before = None if name in CLEANED else Rows()
    latest = check_folds(path, delivered, states(path, answer, range(first, last + 1)), before)
    if refusal is None:
        check_snapshot(path, latest)
    else:
        check_refusal(refusal, delivered.error)


def check_refusal(refusal: Refusal, error: TailerError | None) -> None:
    """Check that the error is the expected one, and that a file which it calls missing is missing."""
    assert type(error) is refusal.error, f"{error!r} in place of {refusal.error.__name__}: {refusal.why}"
    assert error.hint
    if isinstance(error, FileVacuumed):
        assert not Path(error.path).exists(), error


@pytest.mark.parametrize("group", GROUPS)
def test_every_table_is_right_or_refused(
    group: str, tables: dict[str, Path], answers: dict[str, dict[int, pa.Table]]
) -> None:
    chosen = [name for name in tables if name.startswith(f"{group}/")]
    wrong: list[str] = []
    for name in chosen:
        try:
            check(name, tables[name], answers.get(name))
        except Exception as error:  # noqa: BLE001 - the other tables are judged, too
            wrong.append(f"{name}: {error if isinstance(error, AssertionError) else repr(error)}")
    assert len(chosen) == GROUPS[group]
    if wrong:
        pytest.fail(f"{len(wrong)} of {len(chosen)} tables\n" + "\n\n".join(wrong), pytrace=False)


def test_every_table_is_in_a_group_and_every_name_is_one(tables: dict[str, Path]) -> None:
    assert len(tables) == sum(GROUPS.values()) == 319
    named = [*chain(*SPARK_DECIDES.values()), *CLEANED, *REFUSAL_OF]
    assert [name for name in named if name not in tables] == []
    assert len(REFUSAL_OF) == sum(len(refusal.names) for refusal in REFUSED)


def test_spark_has_answered_for_every_table_that_delta_rs_cannot_judge(
    answers: dict[str, dict[int, pa.Table]],
) -> None:
    assert sorted(answers) == sorted(chain(*SPARK_DECIDES.values()))
