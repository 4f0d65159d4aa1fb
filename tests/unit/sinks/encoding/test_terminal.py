"""The table for people, as displayed."""

import io
from dataclasses import replace

import pyarrow as pa
import pytest
from rich.console import Console

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, ChangeBatch, Gap, SchemaChange
from tailer_sinks.encoding.terminal import TerminalView
from tailer_sinks.testing import change_batch
from tests.support.cases import cases

MOMENT = "2026-03-01T12:00:00.00000"


def changes(
    version: int, kinds: list[str], columns: dict[str, pa.Array], positions: list[int] | None = None
) -> ChangeBatch:
    """Make changes of these kinds. `positions`: one for both images of an update that was compared."""
    batch = change_batch(version, columns)
    index = batch.rows.schema.get_field_index(CHANGE_TYPE)
    rows = batch.rows.set_column(index, batch.rows.schema.field(index), pa.array(kinds))
    return ChangeBatch(batch.table_id, version, 0, rows, batch.row_index if positions is None else pa.array(positions))


def view(width: int = 60, **options: object) -> TerminalView:
    return TerminalView("stdout", Console(file=io.StringIO(), width=width, highlight=False, **options))  # type: ignore[arg-type]


def shown(table: TerminalView, *batches: ChangeBatch) -> list[str]:
    return "".join(text for batch in batches for text in table.rows([batch])).splitlines()


def people(ids: list[int | None], names: list[str | None]) -> dict[str, pa.Array]:
    return {"id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())}


def test_signs_of_change_types() -> None:
    table = view()
    kinds = ["insert", "update_preimage", "update_postimage", "delete"]
    batch = changes(7, kinds, people([1, 20, 20, 3], ["Ann", "Bob", "Robert", None]), [0, 1, 1, 2])
    assert shown(table, batch) == [
        f"version 7 · {MOMENT}7Z " + "─" * 20,
        "   id  name",
        "+   1  Ann",
        "~  20  Bob → Robert",
        "-   3  null",
    ]
    assert table.counts() == "   1 inserted, 1 deleted, 1 updated\n"
    assert table.counts() == ""


def test_columns_widen_as_rows_come_and_names_are_repeated_only_then() -> None:
    table = view()
    rows = [changes(version, ["insert"], people([version], [name])) for version, name in ((1, "Bo"), (2, "Al"))]
    assert shown(table, *rows) == [
        f"version 1 · {MOMENT}1Z " + "─" * 20,
        "   id  name",
        "+   1  Bo",
        "   1 inserted",
        f"version 2 · {MOMENT}2Z " + "─" * 20,
        "+   2  Al",
    ]
    assert shown(table, changes(2, ["insert"], people([1000], ["x"]))) == ["     id  name", "+  1000  x"]
    assert shown(table, changes(2, ["insert"], {"new": pa.array([1.5])})) == ["   new", "+  1.5"]
    assert table.counts() == "   3 inserted\n"


def test_long_values_are_cut_only_as_far_as_they_must_be() -> None:
    batch = changes(1, ["insert"], {"id": pa.array([1]), "a": pa.array(["x" * 500]), "b": pa.array(["y" * 20])})
    assert shown(view(80), batch)[2] == f"+   1  {'x' * 50}…  {'y' * 20}"
    assert shown(view(40), batch)[2] == f"+   1  {'x' * 14}…  {'y' * 14}…"
    assert shown(view(300), batch)[2] == f"+   1  {'x' * 119}…  {'y' * 20}"


def test_many_columns_are_wrapped() -> None:
    columns = {f"column{n}": pa.array([n, None]) for n in range(8)}
    lines = shown(view(30), changes(1, ["insert", "delete"], columns))
    assert lines[1:6] == [
        "+  column0=0  column1=1",
        "   column2=2  column3=3",
        "   column4=4  column5=5",
        "   column6=6  column7=7",
        "-  column0=null  column1=null",
    ]
    assert all(len(line) <= 30 for line in lines)


@cases(
    ("value", "text"),
    [
        ("\x1b[31mred\x07", r"\u001b[31mred\u0007"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x9b31m\u202eevil", r"\x9b31m\u202eevil"),
        ("[bold]markup[/bold] :smile:", "[bold]markup[/bold] :smile:"),
        ("", '""'),
        ("null", '"null"'),
        (" padded ", '" padded "'),
        ("東京", "東京"),
    ],
)
def test_a_value_cannot_control_the_terminal_and_stays_distinct(value: str, text: str) -> None:
    batch = changes(1, ["insert"], {value or "c": pa.array([value])})
    lines = shown(view(force_terminal=False), batch)
    assert lines[2] == f"+  {text}"
    assert "\x1b" not in lines[1]


def test_wide_characters_keep_columns_in_line() -> None:
    batch = changes(1, ["insert"] * 2, {"city": pa.array(["東京", "Rome"]), "n": pa.array([1, 2])})
    assert shown(view(), batch)[2:] == ["+  東京  1", "+  Rome  2"]


def test_nested_values_are_json() -> None:
    kind = pa.struct([("a", pa.list_(pa.string()))])
    assert shown(view(), changes(1, ["insert"], {"s": pa.array([{"a": ["x"]}], kind)}))[2] == '+  {"a":["x"]}'


def test_a_change_type_of_another_writer_is_shown_as_it_is() -> None:
    table = view()
    assert shown(table, changes(1, ["merged\x1b"], people([1], ["x"])))[2] == "merged\\x1b  1  x"
    assert table.counts() == "   1 merged\\x1b\n"


def test_no_rows_are_nothing() -> None:
    table = view()
    assert shown(table, changes(1, ["insert"], people([1], ["x"])).slice(0, 0)) == []
    assert table.counts() == ""


def test_a_schema_change_is_a_line_and_the_heading_is_repeated() -> None:
    table = view()
    before, after = people([1], ["x"]), {"id": pa.array([1]), "mail": pa.array(["y"])}
    event = SchemaChange("t", 7, 0, pa.schema([]), pa.schema([]), ("column name was\ndropped", "column mail was added"))
    lines = shown(table, changes(7, ["delete"], before))
    lines += table.event(event).splitlines() + shown(table, changes(7, ["insert"], after))
    assert lines[1:] == [
        "   id  name",
        "-   1  x",
        r"   version 7: column name was\ndropped; column mail was added",
        "   id  mail",
        "+   1  y",
    ]
    assert table.event(replace(event, version=8, changes=("a type",))) == (
        "   1 inserted, 1 deleted\n   version 8: a type\n"
    )
    assert shown(table, changes(8, ["insert"], after)) == [
        f"version 8 · {MOMENT}8Z " + "─" * 20,
        "   id  mail",
        "+   1  y",
    ]


def test_a_gap_is_a_line_and_what_follows_has_a_heading() -> None:
    table = view()
    rows = changes(7, ["insert"], people([1], ["x"]))
    gap = Gap("t", 7, 7, 0, "the file " + "long/" * 20 + "is gone", snapshot=True)
    assert shown(table, rows)[2:] == ["+   1  x"]
    assert table.event(gap).splitlines() == [
        "   1 inserted",
        f"   changes of versions 7 to 7 are lost: {gap.reason}; all rows of the table follow",
    ]
    assert shown(table, rows)[:2] == [f"version 7 · {MOMENT}7Z " + "─" * 20, "   id  name"]
    assert table.event(replace(gap, snapshot=False)).endswith("is gone; version 8 follows\n")


def test_colours() -> None:
    table = view(force_terminal=True, color_system="standard")
    batch = changes(
        1, ["insert", "delete", "update_preimage", "update_postimage"], people([1] * 4, ["x"] * 4), [0, 1, 2, 2]
    )
    styles = [line.partition("m")[0] for line in shown(table, batch)[2:]]
    assert styles == ["\x1b[32", "\x1b[31", "\x1b[33"]
    batch = changes(2, ["update_preimage", "update_postimage"], people([1, 1], ["x", "y"]), [0, 0])
    assert shown(table, batch)[-1].count("\x1b[1;33mx → y") == 1
    batch = changes(3, ["update_postimage", "update_preimage"], people([1, 1], ["x", "y"]))
    assert [line.partition("m")[0] for line in shown(table, batch)[2:]] == ["\x1b[33", "\x1b[2;33"]


@cases(
    ("kinds", "index", "signs"),
    [
        ("ui", [0, 1], ["~-", "+ "]),
        ("uU", [7, 7], ["~ "]),
        ("iuUuUd", [0, 1, 1, 2, 2, 0], ["+ ", "~ ", "~ ", "- "]),
        ("uU", [0, 1], ["~-", "~+"]),  # as a writer wrote them: nothing tells that they belong together
        ("uUuU", [0, 1, 2, 3], ["~-", "~+", "~-", "~+"]),
        ("uuUU", [0, 1, 2, 3], ["~-", "~-", "~+", "~+"]),
        ("Uu", [0, 0], ["~+", "~-"]),
    ],
)
def test_an_update_is_one_line_where_its_images_belong_together(kinds: str, index: list[int], signs: list[str]) -> None:
    names = {"u": "update_preimage", "U": "update_postimage", "i": "insert", "d": "delete"}
    batch = changes(1, [names[kind] for kind in kinds], {"id": pa.array(range(len(kinds)))}, index)
    assert [line[:2] for line in shown(view(), batch)[2:]] == signs


def test_images_of_two_files_are_no_update() -> None:
    halves = [changes(1, [f"update_{kind}image"], people([1], ["x"]), [0]) for kind in ("pre", "post")]
    assert [line[:2] for line in "".join(view().rows(halves)).splitlines()[2:]] == ["~-", "~+"]


def test_an_update_between_two_pieces_is_one_line() -> None:
    kinds = ["insert"] * 255 + ["update_preimage", "update_postimage"] * 200
    index = [*range(255), *(255 + number // 2 for number in range(400))]
    lines = shown(view(), changes(1, kinds, {"id": pa.array(range(len(kinds)))}, index))
    assert [line[:2] for line in lines if "→" in line] == ["~ "] * 200
    assert sum(line.startswith(("+", "~")) for line in lines) == 455


def test_nested_values_are_cut_early() -> None:
    (line,) = shown(view(200), changes(1, ["insert"], {"list": pa.array([list(range(100))])}))[2:]
    assert len(line) == 3 + 60 + 1


def test_a_type_without_a_text_is_named() -> None:
    batch = changes(1, ["insert"], {"v": pa.array([None], pa.month_day_nano_interval())})
    with pytest.raises(SinkRejected, match="column v has type month_day_nano_interval"):
        shown(view(), batch)


def test_a_large_batch_comes_in_pieces() -> None:
    batch = changes(1, ["insert"] * 1000, people(list(range(1000)), ["x"] * 1000))
    assert len(list(view().rows([batch]))) == 5


@pytest.mark.parametrize("width", [60, 8])
def test_explanations_are_whole_and_below_their_rows(width: int) -> None:
    reasons = pa.array(["part-1, row 1: the file was added", "part-0, row 7: old\x1b", "part-0, row 7: old\x1b"])
    batch = changes(
        7,
        ["insert", "update_preimage", "update_postimage"],
        people([1, 2, 2], ["Ann", "Bob", "Bo"]) | {"_explain": reasons},
        [0, 1, 1],
    )
    lines = shown(view(width), batch)
    assert not any("_explain" in line for line in lines)
    assert [line for line in lines if "part-" in line] == [
        "   part-1, row 1: the file was added",
        r"   part-0, row 7: old\x1b",
    ]
    assert lines.index("   part-1, row 1: the file was added") < lines.index(r"   part-0, row 7: old\x1b") - 1
