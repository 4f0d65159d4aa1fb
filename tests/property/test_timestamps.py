"""Extreme timestamps in every form of a file or partition: exact values, or a named error."""

import random
import struct
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tailer.changelog.equal_rows.compared_columns import by_partition
from tailer.errors import ChangesUnavailable, DataCorrupt
from tailer.files.partition_values import partition_scalar
from tailer.read.execute import execute
from tests.support.cases import cases
from tests.support.follow import follow
from tests.support.tables.log_files import parquet, task

ZONED, NO_ZONE, RAW = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.binary(12)
DAY_US: Final = 86_400_000_000
EPOCH_DAY: Final = 2_440_588
LAST: Final = 2**63 - 1
EDGES: Final = [
    *(0, 1, -1, 999, 1000, -1000, DAY_US - 1, DAY_US, -DAY_US),
    *(-EPOCH_DAY * DAY_US, -EPOCH_DAY * DAY_US - 1, -EPOCH_DAY * DAY_US + 1, (1 - EPOCH_DAY) * DAY_US),
    # Timestamps that differ from one of these years by a whole wrap of the day number.
    *(1_700_000_000_000_000 - (2**32 * DAY_US) % 2**64, 1_700_000_000_000_000),
    *(LAST - EPOCH_DAY * DAY_US, LAST - EPOCH_DAY * DAY_US + 1, LAST, -LAST - 1, LAST - 1, -LAST),
]


def moments(seed: int) -> list[int]:
    dice = random.Random(seed)
    return EDGES + [dice.randint(-LAST - 1, LAST) >> dice.randrange(0, 60) for _ in range(300)]


def truncated(value: int, by: int) -> tuple[int, int]:
    """Return quotient and remainder as Java has them."""
    quotient = abs(value) // by * (1 if value >= 0 else -1)
    return quotient, value - quotient * by


def as_spark_writes(micros: int) -> bytes:
    """Return the 96 bits of a timestamp, with the overflow of Spark's own sum."""
    julian = (micros + EPOCH_DAY * DAY_US + 2**63) % 2**64 - 2**63
    day, rest = truncated(julian, DAY_US)
    return struct.pack("<qi", rest * 1000, day)


def as_others_write(micros: int) -> bytes:
    """Return the 96 bits of a timestamp with nanoseconds of the day that are never negative."""
    day, rest = divmod(micros, DAY_US)
    return struct.pack("<qi", rest * 1000, day + EPOCH_DAY)


# Written by Spark 4.2 as nanoseconds of the day and day, and read back unchanged.
WRITTEN_BY_SPARK: Final = [
    (-1, 86_399_999_999_000, 2_440_587),
    (-210_866_803_200_000_000, 0, 0),
    (-210_866_803_200_000_001, -1000, 0),
    (-210_866_932_800_000_000, -43_200_000_000_000, -1),
    (-2_148_592_900_208_967_680, -33_008_967_680_000, -22_427_385),
    (9_012_505_233_654_775_807, 14_454_775_807_000, 106_751_991),
    (9_012_505_233_654_775_808, -14_454_775_808_000, -106_751_991),
    (9_223_372_036_854_775_807, -14_454_775_809_000, -104_311_403),
    (-9_223_372_036_854_775_808, -14_454_775_808_000, -104_311_403),
]


@pytest.mark.parametrize("count", [1, 200], ids=["few", "many"])
def test_extreme_timestamps_written_by_spark(tmp_path: Path, count: int) -> None:
    raw = [struct.pack("<qi", nanos, day) for _, nanos, day in WRITTEN_BY_SPARK]
    assert [as_spark_writes(micros) for micros, _, _ in WRITTEN_BY_SPARK] == raw
    found = read(int96(tmp_path / "f", pa.table({"a": pa.array(raw * count, RAW)})), ZONED)
    assert found.cast(pa.int64()).to_pylist() == [micros for micros, _, _ in WRITTEN_BY_SPARK] * count


def int96(path: Path, table: pa.Table, **options: Any) -> Path:
    """Mark the fixed-size binary columns of 12 bytes of a file as timestamps of 96 bits."""
    parquet(path, table, store_schema=False, **options)
    content = path.read_bytes()
    size = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - size : -8].replace(b"\x15\x0e\x15\x18", b"\x15\x06\x15\x18")
    path.write_bytes(content[: -8 - size] + footer + content[-8:])
    schema = pq.ParquetFile(path).schema
    assert "INT96" in {schema.column(index).physical_type for index in range(len(schema))}
    return path


def read(path: Path, kind: pa.DataType) -> pa.Array:
    batches = [batch.rows.column(0) for batch in execute(task(path, pa.schema([("a", kind)])))]
    return pa.concat_arrays(batches)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("write", [as_spark_writes, as_others_write])
@pytest.mark.parametrize("kind", [ZONED, NO_ZONE], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"use_dictionary": False}, {"row_group_size": 7}, {"data_page_version": "2.0", "compression": "zstd"}],
    ids=str,
)
def test_moments_of_96_bits(
    tmp_path: Path, write: Callable[[int], bytes], kind: pa.DataType, options: dict[str, Any]
) -> None:
    values = moments(1)
    raw = [None if row % 5 == 4 else write(value) for row, value in enumerate(values)]
    found = read(int96(tmp_path / "f", pa.table({"a": pa.array(raw, pa.binary(12))}), **options), kind)
    expected = [None if row % 5 == 4 else value for row, value in enumerate(values)]
    assert found.type == kind
    assert found.cast(pa.int64()).to_pylist() == expected


def test_more_moments_than_are_decoded_at_a_time(tmp_path: Path) -> None:
    values = [number * 1_000_003 - 10**15 for number in range(20_000)]
    lists = pa.ListArray.from_arrays(pa.array([0, 9_000, 20_000], pa.int32()), pa.array(map(as_spark_writes, values)))
    raw = lists.cast(pa.list_(pa.binary(12)))
    found = read(int96(tmp_path / "f", pa.table({"a": raw})), pa.list_(ZONED))
    assert found.flatten().cast(pa.int64()).to_pylist() == values


@pytest.mark.sampled(3)
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
@pytest.mark.parametrize("odd", [0, -EPOCH_DAY * DAY_US, EDGES[13], -LAST - 1, LAST], ids=str)
def test_one_value_among_many_in_a_dictionary(tmp_path: Path, compression: str, odd: int) -> None:
    values = [odd if row == 150 else row * 1_000_003 for row in range(300)]
    raw = pa.array([as_spark_writes(values[row % 300]) for row in range(2000)], RAW)
    path = int96(tmp_path / "f", pa.table({"a": raw}), compression=compression)
    assert read(path, ZONED).cast(pa.int64()).to_pylist() == [values[row % 300] for row in range(2000)]


NESTED: Final[dict[str, tuple[Callable[[pa.DataType], pa.DataType], Callable[[Any], Any]]]] = {
    "field": (lambda kind: pa.struct([("n", pa.int64()), ("t", kind)]), lambda value: {"n": 1, "t": value}),
    "element": (pa.list_, lambda value: [value, None, value]),
    "key": (lambda kind: pa.map_(kind, pa.string()), lambda value: [(value, "x")]),
    "value": (lambda kind: pa.map_(pa.string(), kind), lambda value: [("x", value), ("y", None)]),
    "deep": (
        lambda kind: pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(kind))), ("n", pa.int32())])),
        lambda value: [None, {"m": [("k", [value, None]), ("l", None)], "n": 1}, {"m": None, "n": 2}],
    ),
}


@pytest.mark.parametrize("place", NESTED)
def test_moments_of_96_bits_on_every_level(tmp_path: Path, place: str) -> None:
    around, nest = NESTED[place]
    values = moments(2)
    rows = [nest(as_spark_writes(value)) for value in values]
    raw = pa.array([None, *rows, None], around(RAW))
    found = read(int96(tmp_path / "f", pa.table({"a": raw, "b": range(len(raw))}), row_group_size=50), around(ZONED))
    assert found.type == around(ZONED)
    numbers = around(pa.int64())
    assert found.cast(numbers).to_pylist() == pa.array([None, *map(nest, values), None], numbers).to_pylist()


def test_moments_of_96_bits_in_required_fields_of_structs_that_are_null(tmp_path: Path) -> None:
    def around(kind: pa.DataType) -> pa.DataType:
        inner = pa.struct([pa.field("t", kind, nullable=False), pa.field("d", pa.int32(), nullable=False)])
        return pa.list_(pa.map_(pa.int32(), pa.list_(pa.struct([pa.field("n", inner, nullable=False)]))))

    def nested(values: list[Any]) -> list[Any]:
        return [[[(1, [{"n": {"t": value, "d": 7}}, None]), (2, None)], None, []] for value in values]

    values = [0, -1, DAY_US, 1_700_000_000_000_000, -62_135_596_800_000_000]
    raw = pa.array([None, *nested(list(map(as_spark_writes, values)))], around(RAW))
    found = read(int96(tmp_path / "f", pa.table({"a": raw}), row_group_size=4), around(ZONED))
    assert found.to_pylist() == pa.array([None, *nested(values)], around(ZONED)).to_pylist()


def test_parts_of_a_microsecond_are_cut_off_as_spark_does(tmp_path: Path) -> None:
    raw = [struct.pack("<qi", nanos, EPOCH_DAY) for nanos in (999, 1000, 1999, -999, -1000, -1999)]
    found = read(int96(tmp_path / "f", pa.table({"a": pa.array(raw, RAW)})), ZONED)
    assert found.cast(pa.int64()).to_pylist() == [0, 1, 1, 0, -1, -1]


@pytest.mark.parametrize("day", [2**31 - 1, -(2**31), 109_192_580, -106_751_993])
def test_days_that_no_timestamp_has(tmp_path: Path, day: int) -> None:
    raw = pa.array([as_spark_writes(0), struct.pack("<qi", 0, day)], RAW)
    with pytest.raises(DataCorrupt, match="96 bits is outside of the years") as caught:
        read(int96(tmp_path / "f", pa.table({"a": raw})), ZONED)
    assert caught.value.path == str(tmp_path / "f")


def test_fixed_size_binary_beside_moments_stays_what_it_is(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array([0, None], ZONED), "a": pa.array([b"0123456789ab", None], RAW)})
    path = parquet(tmp_path / "f", table, use_deprecated_int96_timestamps=True)
    assert read(path, pa.binary()).to_pylist() == [b"0123456789ab", None]


UNITS: Final = {"ms": 1000, "us": 1, "ns": 1}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
@pytest.mark.parametrize("place", ["column", *NESTED])
def test_moments_of_64_bits(tmp_path: Path, unit: str, zone: str | None, place: str) -> None:
    """In microseconds they are exact; where that is impossible, the task stops."""
    around, nest = NESTED.get(place, (lambda kind: kind, lambda value: value))
    stored, wanted = pa.timestamp(unit, zone), NO_ZONE if zone is None else ZONED
    many = [value - value % 1000 if unit == "ns" else value for value in moments(3)]
    fitting = [value for value in many if abs(value * UNITS[unit]) < LAST and (unit != "ns" or abs(value) < LAST)]

    def values(numbers: list[int], kind: pa.DataType) -> pa.Array:
        return pa.array([None, *map(nest, numbers)], around(pa.int64())).cast(around(kind))

    micros = [value // 1000 if unit == "ns" else value * UNITS[unit] for value in fitting]
    path = parquet(tmp_path / "f", pa.table({"a": values(fitting, stored)}))
    assert read(path, around(wanted)).equals(values(micros, wanted))
    bad = {"ms": [LAST // 1000 + 1, -LAST // 1000 - 2], "us": [], "ns": [1, -1, LAST]}[unit]
    for value in bad:
        with pytest.raises(DataCorrupt):
            read(parquet(path, pa.table({"a": values([value], stored)})), around(wanted))


@pytest.mark.parametrize("day", [-(2**31), -719_529, -1, 0, 2_932_897, 2**31 - 1])
def test_extreme_days(tmp_path: Path, day: int) -> None:
    path = parquet(tmp_path / "f", pa.table({"a": pa.array([day], pa.int32()).cast(pa.date32())}))
    assert read(path, pa.date32()).cast(pa.int32()).to_pylist() == [day]
    if abs(day) < 2**31 - 1:
        assert read(path, NO_ZONE).cast(pa.int64()).to_pylist() == [day * DAY_US]
    else:
        with pytest.raises(DataCorrupt, match="no timestamp"):
            read(path, NO_ZONE)


TEXTS: Final = [
    ("-290308-12-21 19:59:05.224192", -LAST - 1),
    ("-290308-12-21T19:59:05.224192Z", -LAST - 1),
    ("-4713-11-24 00:00:00", -EPOCH_DAY * DAY_US),
    ("-0044-03-15 00:00:00", -735_525 * DAY_US),
    ("-0001-12-31T23:59:59.999999Z", -719_528 * DAY_US - 1),
    ("0000-01-01 00:00:00", -719_528 * DAY_US),
    ("0000-02-29 00:00:00.5", (59 - 719_528) * DAY_US + 500_000),
    ("9999-12-31 23:59:59.999999", 2_932_897 * DAY_US - 1),
    ("+10000-01-01", 2_932_897 * DAY_US),
    ("+10000-01-01 00:00:00", 2_932_897 * DAY_US),
    ("10000-01-01 00:00:00", 2_932_897 * DAY_US),
    ("+294247-01-10T04:00:54.775807Z", LAST),
    ("+294247-01-10 04:00:54.775807", LAST),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [ZONED, NO_ZONE], ids=str)
@pytest.mark.parametrize(("text", "micros"), TEXTS)
def test_moments_of_partitions(text: str, micros: int, kind: pa.DataType) -> None:
    found = partition_scalar(text, pa.field("p", kind), "t", 1, "f")
    assert (found.type, found.value) == (kind, micros)


@pytest.mark.parametrize(
    ("text", "micros", "without_zone"),
    [
        ("+10000-01-01T01:30:00+01:30", 2_932_897 * DAY_US, 2_932_897 * DAY_US + DAY_US // 16),
        ("+10000-01-01 00:00:00-0800", 2_932_897 * DAY_US + DAY_US // 3, 2_932_897 * DAY_US),
    ],
)
def test_a_zone_counts_in_a_column_with_zones_only(text: str, micros: int, without_zone: int) -> None:
    """Spark reads the clock of the text for a TIMESTAMP_NTZ."""
    found = [partition_scalar(text, pa.field("p", kind), "t", 1, "f").value for kind in (ZONED, NO_ZONE)]
    assert found == [micros, without_zone]


@cases(
    ("text", "day"),
    [
        ("-5877641-06-23", -(2**31)),
        ("-0044-03-15", -735_525),
        ("-0004-02-29", -720_930),
        ("0000-01-01", -719_528),
        ("0000-02-29", -719_469),
        ("+10000-01-01", 2_932_897),
        ("10000-01-01", 2_932_897),
        ("+5881580-07-11", 2**31 - 1),
    ],
)
def test_days_of_partitions(text: str, day: int) -> None:
    assert partition_scalar(text, pa.field("p", pa.date32()), "t", 1, "f").value == day


def test_days_of_partitions_as_python_counts_them() -> None:
    dice = random.Random(4)
    for _ in range(2000):
        ordinal = dice.randrange(1, date.max.toordinal())
        day, later = date.fromordinal(ordinal), ordinal + 146_097 * 25  # a whole cycle of the calendar
        text = f"+{day.year + 10_000:05}-{day:%m-%d}"
        assert (
            partition_scalar(text, pa.field("p", pa.date32()), "t", 1, "f").value
            == later - date(1970, 1, 1).toordinal()
        )


@cases(
    ("text", "kind"),
    [
        ("+5881580-07-12", pa.date32()),
        ("-5877641-06-22", pa.date32()),
        ("+10000-02-30", pa.date32()),
        ("+10001-02-29", pa.date32()),
        ("-0044-13-01", pa.date32()),
        ("-0044-00-01", pa.date32()),
        ("-0044-03-15 00:00:00", pa.date32()),
        ("+294247-01-10 04:00:54.775808", NO_ZONE),
        ("-290308-12-21T19:59:05.224191Z", ZONED),
        ("0001-02-29T00:00:00.500000Z", ZONED),  # Spark writes it for the previous year, and reads null
        ("+10000-01-01 24:00:00", NO_ZONE),
        ("+10000-01-01 00:60:00", NO_ZONE),
        ("+10000-01-01 00:00:00.1234567", NO_ZONE),
        ("+10000-01-01 00:00:00+19:00", ZONED),
        ("+99999999-01-01", NO_ZONE),
    ],
)
def test_texts_that_are_none(text: str, kind: pa.DataType) -> None:
    with pytest.raises(ChangesUnavailable, match="partition value"):
        partition_scalar(text, pa.field("p", kind), "t", 1, "f")


@pytest.mark.parametrize("kind", [ZONED, NO_ZONE, pa.date32()], ids=str)
def test_extreme_partition_values_are_rows_and_stay_distinct(tmp_path: Path, kind: pa.DataType) -> None:
    path, schema = parquet(tmp_path / "f", pa.table({"a": [1, 2]})), pa.schema([("p", kind), ("a", pa.int64())])
    texts = ["+10000-01-01", "-0044-03-15", "-0044-03-15", "10000-01-01"]
    tasks = [task(path, schema, partition_values=[("p", text)]) for text in texts]
    assert by_partition(tasks, [schema] * len(tasks)) == [[0, 3], [1, 2]]
    (batch,) = execute(tasks[0])
    assert {value.value for value in batch.rows.column("p")} == {
        partition_scalar(texts[0], schema.field("p"), "t", 1, "f").value
    }


SPARK_MOMENTS: Final = [*EDGES, 9_007_174_557_792_000_000, 9_007_206_114_744_000_000]


@pytest.mark.parametrize("stored", ["INT96", "TIMESTAMP_MICROS"])
def test_moments_that_spark_writes(quick_spark: SparkSession, tmp_path: Path, stored: str) -> None:
    """In each of its types, and in partitions, they equal the values that Spark reads."""
    path, setting = tmp_path / "table", "spark.sql.parquet.outputTimestampType"
    before = quick_spark.conf.get(setting)
    micros = pa.table({"id": range(len(SPARK_MOMENTS)), "v": pa.array(SPARK_MOMENTS, pa.int64())})
    parquet(tmp_path / "values", micros)
    quick_spark.conf.set(setting, stored)
    try:
        quick_spark.sql(
            f"CREATE TABLE delta.`{path}` USING delta PARTITIONED BY (p, d) AS SELECT id, timestamp_micros(v) AS t,"
            " CAST(timestamp_micros(v) AS TIMESTAMP_NTZ) AS p, CAST(timestamp_micros(v) AS DATE) AS d"
            f" FROM parquet.`{tmp_path / 'values'}`"
        )
    finally:
        quick_spark.conf.set(setting, before or "INT96")
    files = list(path.rglob("*.parquet"))
    assert {pq.ParquetFile(file).schema.column(1).physical_type for file in files} == {
        "INT96" if stored == "INT96" else "INT64"
    }
    rows = quick_spark.sql(f"SELECT id, unix_micros(t) AS t, unix_date(d) AS d FROM delta.`{path}`").collect()
    expected = {row.id: (row.t, row.t, row.d) for row in rows}
    assert {number: moment for number, (moment, _, _) in expected.items()} == dict(enumerate(SPARK_MOMENTS))
    found: dict[int, tuple[int, int, int]] = {}
    for version in follow(path):
        for batch in version.batches:
            columns = [batch.rows.column(name) for name in ("id", "t", "p", "d")]
            wide = [column.cast(pa.int32()) if column.type == pa.date32() else column for column in columns]
            ids, *others = (column.cast(pa.int64()).to_pylist() for column in wide)
            found |= dict(zip(ids, zip(*others, strict=True), strict=True))
    assert found == expected
