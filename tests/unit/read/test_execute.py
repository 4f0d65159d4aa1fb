"""The rows of a task: each once, at its physical position, from any resume point; or an error that names the file."""

import random
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tailer.errors import ChangesUnavailable, DataCorrupt, FileVacuumed, StorageRefused, StorageUnavailable, TailerError
from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, ChangeBatch
from tailer.plan import ChangeTask, DeletionVectorRef, Refinement, TaskKind, output_schema
from tailer.read.execute import execute, row_groups
from tailer.read.parquet.batch_sizes import BATCH_BYTES
from tailer.schema.text_types import with_chars
from tests.support.cases import cases
from tests.support.follow import follow
from tests.support.tables.log_files import marked, parquet, task, vector_data

LONG = pa.schema([("a", pa.int64())])
DATA = [TaskKind.INSERT, TaskKind.DELETE]
KINDS = ["insert", "delete", "update_preimage", "update_postimage", "delete", "strange"]


@pytest.fixture(params=[1, 3, 8192], ids="batches of {}".format)
def any_batch_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailer.read.parquet.batch_sizes.MAX_ROWS", request.param)


def rows(batches: Iterable[ChangeBatch]) -> list[tuple[int, int, str]]:
    """Return position, value and change type of every row."""
    found: list[tuple[int, int, str]] = []
    for batch in batches:
        assert len(batch) > 0
        assert batch.kind is None or set(batch.rows.column(CHANGE_TYPE).to_pylist()) == {batch.kind}
        columns = (batch.row_index, batch.rows.column(0), batch.rows.column(CHANGE_TYPE))
        found += zip(*(column.to_pylist() for column in columns), strict=True)
    assert [row for row, *_ in found] == sorted({row for row, *_ in found})
    return found


def numbers(path: Path, groups: Iterable[int]) -> Path:
    """Write a file whose column `a` counts from 100, in row groups of the given sizes."""
    first = 100
    with pq.ParquetWriter(path, LONG) as writer:
        for size in groups:
            writer.write_table(pa.table({"a": pa.array(range(first, first + size), pa.int64())}))
            first += size
    return path


def changes(path: Path, count: int, group_rows: int) -> Path:
    """Write a change file with rows of every change type in turn."""
    kinds = [KINDS[row % len(KINDS)] for row in range(count)]
    return parquet(path, pa.table({"a": range(count), CHANGE_TYPE: kinds}), row_group_size=group_rows)


def test_a_small_file_causes_no_search_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given plain Python values, Arrow looks for optional packages, which is slow with many small files."""
    tasks = [task(numbers(tmp_path / f"f{count}", [count]), LONG, kind) for count in (1, 2) for kind in DATA]
    wanted: list[str] = []

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            wanted.append(name)

    for each in tasks[:2]:
        rows(execute(each))
    monkeypatch.setattr("sys.meta_path", [Finder, *sys.meta_path])
    for each in tasks:
        assert rows(execute(each))
    assert wanted == []


def test_rows_and_their_metadata(tmp_path: Path) -> None:
    (batch,) = execute(task(numbers(tmp_path / "f", [2]), LONG))
    assert batch.rows.schema == output_schema(LONG)
    assert (batch.table_id, batch.version, batch.task) == ("id", 3, 0)
    assert (
        batch.rows.select([CHANGE_TYPE, COMMIT_VERSION]).to_pylist() == [{CHANGE_TYPE: "insert", COMMIT_VERSION: 3}] * 2
    )
    assert batch.rows.column(COMMIT_TIMESTAMP).cast(pa.int64()).to_pylist() == [1_000_000] * 2


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("any_batch_size")
@pytest.mark.parametrize(
    ("include", "exclude"),
    [
        (None, None),
        (None, [0, 4, 5, 6, 11]),
        ([0, 4, 5, 6, 11], None),
        ([0, 4, 5, 6, 11], [4, 6, 7]),
        ([3], None),
        (None, range(12)),
        (range(12), None),
        ([], None),
    ],
)
def test_vectors_over_row_groups_and_every_place_to_resume(
    tmp_path: Path, include: list[int] | None, exclude: list[int] | None
) -> None:
    path = numbers(tmp_path / "f", [4, 1, 0, 5, 2])
    chosen = [row for row in range(12) if (include is None or row in include) and row not in (exclude or ())]
    refs = [None if marks is None else marked(marks) for marks in (include, exclude)]
    for kind, name in ((TaskKind.INSERT, "insert"), (TaskKind.DELETE, "delete")):
        job = task(path, LONG, kind, include=refs[0], exclude=refs[1])
        for after_row in range(-1, 13):
            expected = [(row, 100 + row, name) for row in chosen if row > after_row]
            assert rows(execute(job, after_row)) == expected


@pytest.mark.usefixtures("any_batch_size")
def test_change_files_and_every_place_to_resume(tmp_path: Path) -> None:
    path = changes(tmp_path / "f", 20, 7)
    every = [(row, row, KINDS[row % len(KINDS)]) for row in range(20)]
    for kind in (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS):
        for after_row in range(-1, 21):
            wanted = [row for row in every if (row[2] == "delete") is (kind is TaskKind.CDC_DELETES)]
            expected = [row for row in wanted if row[0] > after_row]
            assert rows(execute(task(path, LONG, kind), after_row)) == expected


def test_random_selections(tmp_path: Path) -> None:
    """The result equals a selection position by position."""
    dice = random.Random(7)
    groups = [dice.randrange(0, 9000) for _ in range(6)]
    path, total = numbers(tmp_path / "f", groups), sum(groups)
    for _ in range(10):
        include = set(dice.sample(range(total), dice.choice([1, 10, total // 2])))
        exclude = set(dice.sample(range(total), dice.choice([1, 10, total // 2])))
        after_row = dice.randrange(-1, total)
        job = task(path, LONG, include=marked(include), exclude=marked(exclude))
        expected = [(row, 100 + row, "insert") for row in sorted(include - exclude) if row > after_row]
        assert rows(execute(job, after_row)) == expected


def named(rows: Iterable[int] | None) -> DeletionVectorRef | None:
    return None if rows is None else marked(rows)


MARKS: list[list[int] | None] = [None, [0, 4, 5, 11], list(range(12))]
IMAGE = {"delete": "update_preimage", "insert": "update_postimage"}
PLAIN = {image: plain for plain, image in IMAGE.items()}


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("any_batch_size")
@pytest.mark.parametrize("dropped", MARKS)
@pytest.mark.parametrize("updated", MARKS)
@pytest.mark.parametrize("exactly", [False, True])
def test_rows_that_are_dropped_or_images_of_updates(
    tmp_path: Path, dropped: list[int] | None, updated: list[int] | None, exactly: bool
) -> None:
    path = numbers(tmp_path / "f", [4, 1, 0, 5, 2])
    refinement = Refinement(named(dropped), named(updated), exactly)
    for include, exclude in ((None, None), ([0, 3, 4, 6, 11], None), (None, [1, 11]), ([0, 3, 4, 6], [3, 7])):
        chosen = [row for row in range(12) if (include is None or row in include) and row not in (exclude or ())]
        chosen = [row for row in chosen if row not in (dropped or ())]
        for kind, name in ((TaskKind.INSERT, "insert"), (TaskKind.DELETE, "delete")):
            job = task(path, LONG, kind, include=named(include), exclude=named(exclude))
            every = [(row, 100 + row, IMAGE[name] if row in (updated or ()) else name) for row in chosen]
            for after_row in (-1, 3, 4, 10, 11):
                expected = [row for row in every if row[0] > after_row]
                assert rows(execute(replace(job, refinement=refinement), after_row)) == expected


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("any_batch_size")
@pytest.mark.parametrize("dropped", MARKS)
@pytest.mark.parametrize("updated", MARKS)
@pytest.mark.parametrize("exactly", [False, True])
def test_rows_of_change_files_that_are_dropped_or_called_otherwise(
    tmp_path: Path, dropped: list[int] | None, updated: list[int] | None, exactly: bool
) -> None:
    """`exactly`: no row is an image unless listed in `updated`; other change types stay."""
    path = changes(tmp_path / "f", 14, 5)
    refinement = Refinement(named(dropped), named(updated), exactly)
    for kind in (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS):
        every = []
        for row in range(14):
            name = KINDS[row % len(KINDS)]
            if (name == "delete") is (kind is TaskKind.CDC_DELETES) and row not in (dropped or ()):
                name = PLAIN.get(name, name) if exactly else name
                every.append((row, row, IMAGE.get(name, name) if row in (updated or ()) else name))
        for after_row in (-1, 3, 12):
            expected = [row for row in every if row[0] > after_row]
            assert rows(execute(replace(task(path, LONG, kind), refinement=refinement), after_row)) == expected


@pytest.mark.parametrize("kind", [TaskKind.INSERT, TaskKind.DELETE, TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS])
@pytest.mark.parametrize("by", ["dropped", "exclude", "both"])
def test_row_groups_that_are_dropped_are_not_read(tmp_path: Path, kind: TaskKind, by: str) -> None:
    """All three row groups are corrupt on disk; only the one with a remaining row raises an error."""
    table = pa.table({"a": range(30), CHANGE_TYPE: KINDS * 5})
    path = parquet(tmp_path / "f", table, row_group_size=10, write_page_checksum=True, use_dictionary=False)
    content = bytearray(path.read_bytes())
    footer = pq.ParquetFile(path).metadata
    for group in range(3):
        place = footer.row_group(group).column(0)
        content[place.data_page_offset + place.total_compressed_size - 3] ^= 1
    path.write_bytes(content)

    def job(kept: Iterable[int]) -> ChangeTask:
        gone = set(range(30)) - set(kept)
        parts = {"dropped": (gone, set()), "exclude": (set(), gone), "both": (set(range(15)) & gone, gone)}[by]
        vectors = [marked(sorted(rows)) if rows else None for rows in parts]
        return replace(task(path, LONG, kind, exclude=vectors[1]), refinement=Refinement(vectors[0]))

    assert rows(execute(job([]))) == []
    with pytest.raises(DataCorrupt):
        rows(execute(job(range(6, 12))))
    with pytest.raises(DataCorrupt):
        rows(execute(job(range(20, 30))))


@pytest.mark.parametrize("vectors", [Refinement, lambda ref: Refinement(None, ref)])
def test_refinements_that_cannot_be_meant(tmp_path: Path, vectors: Callable[[DeletionVectorRef], Refinement]) -> None:
    job = task(numbers(tmp_path / "f", [3]), LONG)
    with pytest.raises(DataCorrupt, match="marks row 3, the file has 3 rows"):
        list(execute(replace(job, refinement=vectors(marked([3])))))
    gone = DeletionVectorRef(str(tmp_path / "v.bin"), None, 1, 34, 1)
    with pytest.raises(StorageUnavailable, match=r"v\.bin"):
        list(execute(replace(job, refinement=vectors(gone))))


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        (pa.array(["delete", "x"]), ["x"]),
        (pa.array(["delete", "x"], pa.large_string()), ["x"]),
        (pa.array(["delete", "x"], pa.string_view()), ["x"]),
        (pa.array([b"delete", b"x"]), ["x"]),
        (pa.array(["delete", "x"]).dictionary_encode(), ["x"]),
        (pa.array(["delete", "delete"]), []),
    ],
)
def test_how_change_types_may_be_stored(tmp_path: Path, kinds: pa.Array, kept: list[str]) -> None:
    path = parquet(tmp_path / "f", pa.table({"a": [1, 2], CHANGE_TYPE: kinds}))
    assert [kind for *_, kind in rows(execute(task(path, LONG, TaskKind.CDC_OTHERS)))] == kept
    assert len(rows(execute(task(path, LONG, TaskKind.CDC_DELETES)))) == 2 - len(kept)


@pytest.mark.parametrize(
    "columns",
    [
        [("a", [1, 2])],
        [("a", [1, 2]), ("_Change_Type", ["insert", "insert"])],
        [("a", [1, 2]), (CHANGE_TYPE, [1, 2])],
        [("a", [1, 2]), (CHANGE_TYPE, ["insert", None])],
        [("a", [1, 2]), (CHANGE_TYPE, pa.nulls(2, pa.string()))],
        [("a", [1, 2]), (CHANGE_TYPE, pa.nulls(2))],
        [("a", [1, 2]), (CHANGE_TYPE, ["insert"] * 2), (CHANGE_TYPE, ["insert"] * 2)],
    ],
)
@pytest.mark.parametrize("kind", [TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS])
def test_a_change_file_that_does_not_say_what_changed(
    tmp_path: Path, kind: TaskKind, columns: list[tuple[str, list[object]]]
) -> None:
    names, values = zip(*columns, strict=True)
    path = parquet(tmp_path / "f", pa.table(list(map(pa.array, values)), names))
    with pytest.raises(DataCorrupt, match=CHANGE_TYPE):
        list(execute(task(path, LONG, kind)))


@pytest.mark.parametrize(
    "options",
    [{}, {"use_dictionary": False}, {"dictionary_pagesize_limit": 2000, "write_batch_size": 64}],
    ids=["dictionary", "plain", "both"],
)
def test_change_types_in_any_encoding(tmp_path: Path, options: dict[str, Any]) -> None:
    """Change types of a writer's own are among them, so many that a dictionary is given up in the middle."""
    kinds = [(KINDS[row % 4] if row % 3 else f"own {row % 701}") for row in range(50_000)]
    table = pa.table({"a": range(len(kinds)), CHANGE_TYPE: kinds})
    path = parquet(tmp_path / "f", table, row_group_size=40_000, **options)
    for kind in (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS):
        wanted = [row for row, name in enumerate(kinds) if (name == "delete") is (kind is TaskKind.CDC_DELETES)]
        for after_row in (-1, 32_767, 40_001):
            found = rows(execute(task(path, LONG, kind), after_row))
            assert found == [(row, row, kinds[row]) for row in wanted if row > after_row]


def test_a_change_type_in_a_data_file_means_nothing(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", pa.table({"a": [100], CHANGE_TYPE: ["delete"]}))
    assert rows(execute(task(path, LONG))) == [(0, 100, "insert")]


@pytest.mark.parametrize("groups", [[], [0], [0, 0]])
def test_files_without_rows(tmp_path: Path, groups: list[int]) -> None:
    assert rows(execute(task(numbers(tmp_path / "f", groups), LONG))) == []


def garbage(path: Path) -> None:
    path.write_bytes(b"garbage" * 100)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def beheaded(path: Path) -> None:
    path.write_bytes(path.read_bytes()[-400:])


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (Path.unlink, FileVacuumed),
        (lambda path: path.write_bytes(b""), DataCorrupt),
        (garbage, DataCorrupt),
        (truncated, DataCorrupt),
        (beheaded, DataCorrupt),
        (directory, DataCorrupt),
        (loop, StorageRefused),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, spoil: Callable[[Path], None], error: type[TailerError]) -> None:
    path = numbers(tmp_path / "f", [1000])
    spoil(path)
    with pytest.raises(error) as caught:
        list(execute(task(path, LONG)))
    assert str(path) in str(caught.value)


@cases(
    ("uri", "error"),
    [
        ("/nowhere/f", FileVacuumed),
        (f"{__file__}/f", FileVacuumed),
        ("s3://bucket/f", ChangesUnavailable),
        ("s3:/bucket/f", ChangesUnavailable),
        ("x:f", ChangesUnavailable),
        ("f", ChangesUnavailable),
        ("", ChangesUnavailable),
        ("/nul\0/f", DataCorrupt),
        ("/\udcff", DataCorrupt),
        ("/" + "x" * 5000, StorageRefused),
    ],
)
def test_places_where_nothing_can_be(uri: str, error: type[TailerError]) -> None:
    with pytest.raises(error):
        list(execute(task(uri, LONG)))
    with pytest.raises(error):
        row_groups(task(uri, LONG))


@pytest.mark.parametrize("role", ["file", "include", "exclude"])
def test_the_folder_we_run_in_is_no_place_for_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    """A file of that name in the working directory is not the table's."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "s3:" / "bucket"
    folder.mkdir(parents=True)
    there = numbers(folder / "f", [3])
    vector = replace(marked([1]), uri="s3://bucket/f", inline=None)
    job = task("s3://bucket/f" if role == "file" else there, LONG)
    job = replace(job, include=vector if role == "include" else None, exclude=vector if role == "exclude" else None)
    with pytest.raises(ChangesUnavailable, match="s3://bucket/f is not a local path"):
        list(execute(job))


@pytest.mark.parametrize("kind", [TaskKind.INSERT, TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS])
def test_a_changed_bit_is_never_a_changed_row(tmp_path: Path, kind: TaskKind) -> None:
    """Pages have checksums, as Spark writes them. A footer has none, but a corrupt one must not crash the process."""
    table = pa.table({"a": range(300), "s": [f"x{row % 5}" for row in range(300)], CHANGE_TYPE: KINDS * 50})
    path = parquet(tmp_path / "f", table, row_group_size=100, write_page_checksum=True, use_dictionary=False)
    whole, dice = path.read_bytes(), random.Random(3)
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    job = task(path, pa.schema([("a", pa.int64()), ("s", pa.string())]), kind)
    expected = [batch.rows for batch in execute(job)]
    for at in [*dice.sample(range(4, footer), 150), *dice.sample(range(footer, len(whole)), 150)]:
        spoiled = bytearray(whole)
        spoiled[at] ^= 1 << dice.randrange(8)
        path.write_bytes(spoiled)
        with suppress(DataCorrupt, StorageUnavailable):
            found = [batch.rows for batch in execute(job)]
            assert at >= footer or found == expected


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (marked([3]), "marks row 3, the file has 3 rows"),
        (marked([2**40]), "marks row"),
        (DeletionVectorRef(None, marked([1]).inline, None, len(vector_data([1])), 2), "holds 1 positions"),
        (DeletionVectorRef(None, "!", None, 1, 1), "Z85"),
        (DeletionVectorRef("{}/f", None, 1, 30, 1), "version 50"),
        (DeletionVectorRef("{}/f", None, 1, 2**31 - 1, 1), "version 50"),
        (DeletionVectorRef("{}", None, 1, 30, 1), "is a directory"),
    ],
)
@pytest.mark.parametrize("side", ["include", "exclude"])
def test_vectors_that_cannot_be_meant(tmp_path: Path, vector: DeletionVectorRef, reason: str, side: str) -> None:
    path = numbers(tmp_path / "f", [3])
    if vector.uri is not None:
        place = vector.uri.format(tmp_path)
        vector = DeletionVectorRef(place, None, vector.offset, vector.size_bytes, vector.cardinality)
    with pytest.raises(DataCorrupt, match=reason):
        list(execute(task(path, LONG, **{side: vector})))  # type: ignore[arg-type]


def test_a_vector_whose_file_is_gone(tmp_path: Path) -> None:
    path = numbers(tmp_path / "f", [3])
    with pytest.raises(FileVacuumed) as caught:
        list(execute(task(path, LONG, include=DeletionVectorRef("/nowhere/v.bin", None, 1, 34, 1))))
    assert caught.value.path == "/nowhere/v.bin"


def test_no_memory_is_allocated_for_a_vector_larger_than_its_file(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(b"\x01" + bytes(50))
    vector = DeletionVectorRef(str(tmp_path / "v"), None, 1, 2**31 - 1, 1)
    with pytest.raises(DataCorrupt, match="the file ends before"):
        list(execute(task(numbers(tmp_path / "f", [3]), LONG, include=vector)))


WORDS = pa.array([f"{number:03}" * 700 for number in range(100)])
LARGE = {
    "repeated texts": pa.table(
        {"a": pa.DictionaryArray.from_arrays(pa.array([n % 100 for n in range(50_000)]), WORDS)}
    ),
    "few values in many columns": pa.table({f"c{n}": pa.repeat(7, 20_000) for n in range(300)}),
    "nulls in many columns": pa.table({f"c{n}": pa.nulls(20_000, pa.int64()) for n in range(300)}),
    "giant values": pa.table({"a": [str(number % 10) * 1_000_000 for number in range(60)]}),
    "padded texts": pa.table({"a": ["x"] * 20_000}),
    "padded texts in lists": pa.table({"a": [["x"] * 4] * 20_000}),
}
NOTES = {"padded texts": "char(2000)", "padded texts in lists": "array<char(500)>"}


@pytest.mark.parametrize("name", LARGE)
def test_batches_stay_small(tmp_path: Path, name: str) -> None:
    table = LARGE[name]
    path = parquet(tmp_path / "f", table, use_dictionary=name != "giant values")
    plain = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in table.schema]
    fields = map(pa.field, table.schema.names, plain)
    schema = pa.schema([with_chars(field, NOTES.get(name)) for field in fields])
    sizes = []
    count = 0
    for batch in execute(task(path, schema)):
        sizes.append(batch.size_bytes)
        count += len(batch)
    assert count == table.num_rows
    assert max(sizes) < 2.5 * BATCH_BYTES


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_closing_early_closes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailer.read.parquet.batch_sizes.MAX_ROWS", 1)
    path = numbers(tmp_path / "f", [20])
    before = open_files()
    batches = cast(Generator[ChangeBatch, None, None], execute(task(path, LONG)))
    next(batches)
    assert open_files() > before
    batches.close()
    assert open_files() == before


def test_the_change_files_of_delta_rs(tmp_path: Path) -> None:
    """It stores strings as views, which Arrow can read but not filter."""
    enabled = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(tmp_path, pa.table({"a": [1, 2, 3], "b": ["x", "y", None]}), configuration=enabled)
    DeltaTable(tmp_path).update(predicate="a = 2", updates={"b": "'q'"})
    DeltaTable(tmp_path).delete("a = 1")
    _, updated, deleted = (version.table.select(["a", "b", CHANGE_TYPE]) for version in follow(tmp_path))
    assert sorted(map(tuple, (row.values() for row in updated.to_pylist())), key=str) == [
        (2, "q", "update_postimage"),
        (2, "y", "update_preimage"),
    ]
    assert deleted.to_pylist() == [{"a": 1, "b": "x", CHANGE_TYPE: "delete"}]


def test_the_same_task_gives_the_same_rows_as_often_as_asked(tmp_path: Path) -> None:
    job: ChangeTask = task(changes(tmp_path / "f", 5000, 700), LONG, TaskKind.CDC_OTHERS)
    assert rows(execute(job)) == rows(execute(job))
