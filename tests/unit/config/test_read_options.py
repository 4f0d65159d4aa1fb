"""The options of reading stand in one struct, and each way to read spells all of them, or refuses one by name."""

import inspect
from typing import Final

import click
import msgspec
import pytest

import tailer
from tailer.cli.tail.verb import command
from tailer.config.options import option_names
from tailer.config.shapes import PipelineShape, RangeOptions
from tailer.errors import ConfigError
from tailer.spark.source.options import read_options
from tests.support.cases import cases

# What has another meaning, or another name, for somebody.
OPTIONS: Final = RangeOptions.__struct_fields__
OF_TAIL: Final = {"net": "--net-changes", "types": "--type"}
OF_SPARK: Final = {"net": "netChanges"}
# Through `TableRef`, the views, the rules of comparing, and `Admission`.
OBEYED_ON_SPARK: Final = {
    *("table_format", "branch"),
    *("columns", "where", "row_ids", "changes"),
    *("carryovers", "compute_updates", "key", "skip_unchanged"),
    "net",
}
NO_OPTION: Final = {"pipeline": {"net"}, "spark": {"select", "types"}}


def camel(option: str) -> str:
    """Return an option in Spark's spelling."""
    first, *others = option.split("_")
    return OF_SPARK.get(option, first + "".join(map(str.capitalize, others)))


def test_a_pipeline_has_them() -> None:
    assert set(OPTIONS) - set(option_names(PipelineShape)) == NO_OPTION["pipeline"]


def test_the_api_and_tail_have_them() -> None:
    assert set(OPTIONS) <= set(inspect.signature(tailer.changes).parameters)
    assert isinstance(command, click.Command)
    spelled = {name for option in command.params for name in option.opts}
    assert {OF_TAIL.get(option, f"--{option.replace('_', '-')}") for option in OPTIONS} <= spelled


def test_the_source_for_spark_obeys_what_it_has() -> None:
    """Its spelling comes by itself, so it would also take an option that nothing there reads."""
    assert {*OPTIONS} == OBEYED_ON_SPARK | NO_OPTION["spark"]


@cases("option", OPTIONS)
def test_the_source_for_spark_has_them(option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options({"path": "/t", camel(option): "" if option == "columns" else "\0"})
    assert caught.value.where == camel(option)
    assert ("Spark's own work" in caught.value.reason) == (option in NO_OPTION["spark"])


FAULTS: Final = (
    {"key": ["id"]},
    {"key": ["id", "id"], "compute_updates": True},
    {"key": ["id"], "compute_updates": True, "columns": ["n"]},
    {"net": True, "carryovers": "keep"},
    {"columns": ["n"], "select": "n"},
)


@pytest.mark.parametrize("given", FAULTS, ids=str)
def test_a_fault_has_one_text_in_each_spelling(given: dict[str, object]) -> None:
    read = msgspec.convert(given, RangeOptions)
    for spell in (str, camel, lambda option: f"--{option}"):
        (fault,) = read.faults(spell)
        assert fault.where in given
        assert fault.hint
        plain = fault.reason.replace(spell("compute_updates"), "compute_updates").replace(spell("columns"), "columns")
        (first,) = read.faults()
        assert plain.replace(spell("net"), "net") == first.reason
