"""Write the generated pages: `python -m tests.generate_docs`.

`architecture.md` begins with the parts of `tests/house.py`; the rest of it is written by hand.
`configuration.md` has every setting of the classes that read them. A setting's description is the comment in its line,
or the one above it. `tests/NIGHTLY.md` has what the markers of tests say.
`errors.md` has every error of `tailer.errors`, with the text and the hint that users see.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import EnumType
from itertools import chain
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from tailer.config.shapes import FileShape, PipelineShape, SparkShape, StoreShape
from tailer.errors import Retry, TailerError
from tailer.formats.delta.catalog.options import UnityOptions
from tailer.stores.secrets import Secret
from tailer_sinks import stdout
from tailer_sinks.delta import options as delta
from tailer_sinks.files import sink as files
from tailer_sinks.http import options as http
from tailer_sinks.kafka import options as kafka
from tailer_sinks.kafka.clients.settings import CONFLUENT_ONLY, PYTHON_NAMES, ClientSettings
from tailer_sinks.sql import options as sql
from tests.house import (
    MODULES,
    PRODUCT_LINES,
    READING_ORDER,
    ROOMS,
    ROOT,
    SPINE,
    SPINE_LINES,
    Part,
    lines,
    part_of,
    sizes,
)
from tests.nightly import repetitions

NAMES: Final = re.compile(r"\{(\w+)\}")
OWN_SECTIONS: Final = ("spark", "stores", "defaults", "pipelines", "sink", "client", "catalog")
# Settings that pages of others explain.
PASSED_ON: Final = {"both": PYTHON_NAMES.keys() - {"client.id"}, "confluent": CONFLUENT_ONLY}
PAGE_IN_TEXT: Final = re.compile(r"\b(\w+\.md)\b")
DOCS: Final = ROOT / "docs"

SECTIONS: Final[tuple[tuple[str, str, type[msgspec.Struct]], ...]] = (
    ("The file", "Keys at the top of the file.", FileShape),
    (
        "[stores.NAME]",
        "One table for each store that needs options. It takes no keys ([how to log in](stores.md#how-to-log-in)).",
        StoreShape,
    ),
    (
        "[pipelines.NAME]",
        (
            "One table for each pipeline, with a table `sink` and perhaps a table `catalog` (below). Its name is part "
            "of the progress, so keep it. `[defaults]` has the same keys but `table`, for all pipelines that do not "
            "set them."
        ),
        PipelineShape,
    ),
    ('[pipelines.NAME.sink], kind = "kafka"', "See [kafka.md](kafka.md).", kafka.Options),
    (
        '[pipelines.NAME.sink.client], kind = "kafka"',
        (
            "Settings of the client, as Kafka spells them; write their names in quotes. Beside these, both clients "
            "take {both} ([explained by Kafka](https://kafka.apache.org/documentation/#producerconfigs)), and "
            "confluent-kafka {confluent} ([explained "
            "there](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md))."
        ),
        ClientSettings,
    ),
    ('[pipelines.NAME.sink], kind = "delta"', "See [delta.md](delta.md).", delta.Options),
    ('[pipelines.NAME.sink], kind = "files"', "See [files.md](files.md).", files._Options),
    (
        '[pipelines.NAME.sink], kind = "http"',
        "It delivers at least once, and needs `state_table`. See [http.md](http.md).",
        http.Options,
    ),
    ('[pipelines.NAME.sink], kind = "sql"', "See [sql.md](sql.md).", sql.Options),
    ('[pipelines.NAME.sink], kind = "stdout"', "It delivers at least once, and needs `state_table`.", stdout._Options),
    (
        '[pipelines.NAME.catalog], kind = "unity"',
        "See [delta.md](delta.md).",
        UnityOptions,
    ),
    ("[spark]", "See [spark.md](spark.md).", SparkShape),
)

INTRO: Final = """\
`tailer check` names every fault of `tailer.toml`, or of the file that `--config` names. The environment wins over the
file: `TAILER_PIPELINES__ORDERS__SINK__TOPIC` is `topic` of the sink of the pipeline `orders`, and
`..._SINK__CLIENT__SASL_PASSWORD` is `sasl.password` in the sink's table `client`. A [secret](secrets.md) is a text, or
`{file = "..."}`, `{command = ["..."]}` or `{env = "..."}`.

Paths are relative to the folder of the file; `~` is the home folder. Variables are not replaced: a folder that is named
`$HOME` or `${NAME}` needs a URI: `file:/data/$HOME`.

A value in bold is the default. A key without values here takes text."""
INTRO_OF_ERRORS: Final = """\
The next step is on the command line after `hint:`, and in the [log of the daemon](operations.md#the-log) and
`tailer status --json` as `hint`. Names in braces stand for what differs."""
# By what a pipeline does next, and by the exit code of a command.
AFTER: Final[dict[tuple[tuple[Retry, ...], int], tuple[str, str]]] = {
    ((Retry.TIMED, Retry.ASK), 4): (
        "Retried: exit code 4",
        "The pipeline goes on [by itself](operations.md#what-happens-after-an-error).",
    ),
    ((Retry.BRIEF,), 4): (
        "Retried for ten seconds: exit code 4",
        "Then the pipeline stops, and begins again by itself.",
    ),
    ((Retry.MANUAL,), 3): ("The table stops the pipeline: exit code 3", "The pipeline waits for a person."),
    ((Retry.MANUAL, Retry.ONCE), 4): (
        "A store or a target stops the pipeline: exit code 4",
        "The pipeline waits for a person.",
    ),
    ((Retry.MANUAL,), 2): ("The configuration: exit code 2", "Nothing was read or written."),
}
# The way past a loss has a page of its own.
AFTER_A_LOSS: Final = ("TableReplaced", "VersionAhead", "LogRewritten")
LOSS: Final = re.compile(
    r"(If that is impossible,( its changes are lost:)? )?`tailer resnapshot PIPELINE` delivers all rows of the newest "
    r"version in place.*?by itself( \(.*?\)|; it continues[^.]*)?"
)
FIELD: Final = re.compile(r" `\w+`: ")  # where a docstring goes on with the fields
MORE: Final = {
    "SinkUnavailable": "`tailer check --connect` tries each sink.",
    "StorageUnavailable": "`tailer check --connect` tries each store.",
    "ScratchUnavailable": "The folder is emptied after each attempt, so `df` may show free space: look at the size of "
    "the disk. [Sizing](../deploy/runbook.md#sizing) says how much one version needs.",
    "EngineUnavailable": "Is the master of Spark up?",
    "SinkFenced": "If it has just begun, the pipeline first tries once more.",
    "SinkRejected": "Of Kafka, see [the runbook](../deploy/runbook.md#refused-by-a-broker).",
}
NOTE: Final = "<!-- Written by `python -m tests.generate_docs`. -->"


def descriptions(kind: type) -> dict[str, str]:
    """Return the comment of each field of a class, in the order of the fields: those that it inherits come first."""
    found = {} if (base := kind.__bases__[0]) is msgspec.Struct or base is object else descriptions(base)
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            _, mark, inline = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")
            above = lines[node.lineno - 2].strip()
            found[node.target.id] = inline if mark else above.removeprefix("# ") if above.startswith("# ") else ""
    return found


def type_text(kind: Any) -> str:
    """Return a type as users write its values."""
    if kind in (str, int, float, bool):
        return {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}[kind]
    if kind is Secret:
        return "[secret](secrets.md)"
    if isinstance(kind, EnumType):
        values: list[Any] = list(kind)
        return ", ".join(f"`{each.value}`" for each in values)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(kind))
    if get_origin(kind) is Annotated:
        return type_text(get_args(kind)[0])
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        return "list" if item is str else f"list of {type_text(item)}"
    if get_origin(kind) is dict and get_args(kind)[1] is Secret:
        return "table of [secrets](secrets.md)"
    parts = [
        each
        for each in get_args(kind)
        if (each is not type(None) and isinstance(each, type | EnumType)) or get_origin(each)
    ]
    if get_origin(kind) is dict or not parts:
        return "table"
    return " or ".join(dict.fromkeys(map(type_text, parts)))


def default_text(value: Any) -> str:
    """Return a default as users would write it."""
    if value is None or value in ("", [], {}) or isinstance(value, msgspec.Struct | Secret):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:_}`" if isinstance(value, int) else f"`{getattr(value, 'value', value)}`"


def value_text(kind: str, default: str, *, required: bool) -> str:
    """Return the values of a setting with its default in bold, or the default alone if any value is possible."""
    if required or not default:
        return ", ".join([*[kind] * (kind != "text"), *["required"] * required])
    return kind.replace(default, f"**{default}**", 1) if default in kind else f"**{default}**"


def settings(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str, Any, Any, bool]]:
    """Return each setting of a class: its name in code and for users, type, default, and whether it is required."""
    hints = get_type_hints(kind)
    for each in msgspec.structs.fields(kind):
        default = None if each.default is msgspec.NODEFAULT else each.default
        yield each.name, each.encode_name, hints[each.name], default, each.required


def configuration() -> str:
    """Build the page `configuration.md`."""
    parts = [
        NOTE,
        "# Configuration",
        INTRO,
    ]
    for title, intro, kind in SECTIONS:
        texts = descriptions(kind)
        fields = sorted(settings(kind), key=lambda row: not row[-1])
        types = {spelled: type_text(annotation) for _, spelled, annotation, _, _ in fields}
        passed_on = {who: [name for name in types if name in names] for who, names in PASSED_ON.items()}
        hidden = {*OWN_SECTIONS, *chain(*passed_on.values())}
        rows = []
        for name, spelled, _, default, required in fields:
            if spelled in hidden:
                continue
            value = value_text(types[spelled], default_text(default), required=required)
            text = PAGE_IN_TEXT.sub(r"[\1](\1)", texts[name])
            rows.append(f"- `{spelled}`{f' ({value})' * bool(value)}: {text}")
        lists = {who: ", ".join(f"`{name}`" for name in names) for who, names in passed_on.items()}
        parts += [f"## {title}", intro.format(**lists), "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def error_classes(kind: type[TailerError]) -> Iterator[type[TailerError]]:
    """Return the classes below `kind` in `tailer.errors`, in the order of their definition."""
    for each in kind.__subclasses__():
        if each.__module__.startswith("tailer.errors"):
            yield each
            yield from error_classes(each)


def errors_page() -> str:
    """Build the page `errors.md`."""
    parts = [NOTE, "# Errors", INTRO_OF_ERRORS]
    kinds = [kind for kind in error_classes(TailerError) if kind.next_step or not kind.__subclasses__()]
    for (retries, code), (title, what_follows) in AFTER.items():
        parts += [f"## {title}", what_follows]
        for kind in kinds:
            if kind.retry in retries and kind.exit_code == code:
                parts += [f"### {kind.__name__}", "\n".join(_error_texts(kind))]
    return "\n\n".join(parts) + "\n"


def _error_texts(kind: type[TailerError]) -> Iterator[str]:
    """Yield the text of an error, or what it means if the text has few words of its own, and the next step."""
    words = re.findall(r"\w+", NAMES.sub("", kind.__dict__.get("sentence", "")))
    if len(words) > 2 and set(NAMES.findall(kind.sentence)) <= kind.__dataclass_fields__.keys():
        yield f"`{kind.sentence}`."
    else:
        yield FIELD.split(" ".join((inspect.getdoc(kind) or "").split()))[0]
    if kind.__name__ in AFTER_A_LOSS:
        yield "See [After a loss](after_a_loss.md#each-error)."
    elif kind.next_step and "{remedy}" not in kind.next_step:
        yield LOSS.sub("If the changes are lost, see [After a loss](after_a_loss.md)", kind.next_step)
    if kind.__name__ in MORE:
        yield MORE[kind.__name__]


NIGHTLY: Final = """\
Repetition, read from the markers `nightly` and `sampled(n)`. The last column is from the docstring of the module.
Beside these:

- all tests with Google's store (`fake_gcs`): the same tests run in Azure, with the same client;
- five times as many random cases, ten times where hypothesis draws many, with a seed that is printed and that
  `LAKE_TAILER_SEED` repeats (`support/seeds.py`);
- Spark Connect (`make test-connect`), `make check-deploy` and `make fuzz`."""
HOUSE: Final = """\
The program, in the order to read it, with about how many lines a module has:

{order}

The *spine* is what every row of every pipeline passes:

{spine}

A *room* is what somebody who does not use it never opens. It may import the spine. The spine imports it inside the
function that needs it, or is named in `tests/house.py` with the reason. Read one when

{rooms}

The spine may have {most} lines, and the product {product}; `tests/unit/test_house.py` counts them."""
HOUSE_END: Final = "<!-- End of what is written by `python -m tests.generate_docs`. -->"
SIZE: Final = re.compile(r"^- (.+) \(([\d,]+)\): ", re.MULTILINE)


def architecture() -> str:
    """Build the page `architecture.md`: its first part from the house, the rest as it is."""
    page = (DOCS / "architecture.md").read_text()
    before = {name: int(size.replace(",", "")) for name, size in SIZE.findall(page)}

    def row(name: str, size: int, text: str) -> str:
        """A size is about right, so that it seldom changes: it stays until it is wrong by more than a tenth."""
        if not 0.9 * size <= (shown := before.get(name, 0)) <= 1.1 * size:
            shown = round(size, min(0, 2 - len(str(size))))
        return f"- {name} ({shown:,}): {text}"

    order = [row(f"`{_path(module)}`", sizes()[module], text) for module, text in READING_ORDER.items()]
    spine = [row(_folders(part), lines(part), part.text) for part in SPINE]
    rooms = [row(f"{_folders(part)} [{part.page}]({part.page}.md)", lines(part), part.text) for part in ROOMS]
    texts = HOUSE.format(
        order="\n".join(order),
        spine="\n".join(spine),
        rooms="\n".join(rooms),
        most=f"{SPINE_LINES:,}",
        product=f"{PRODUCT_LINES:,}",
    )
    return f"{NOTE}\n\n# Architecture\n\n{texts}\n\n{HOUSE_END}\n{page.partition(HOUSE_END)[2].removeprefix(chr(10))}"


def _folders(part: Part) -> str:
    return " ".join(f"`{_path(each)}`" for each in part.prefixes.split() if part_of(each) is part)


def _path(module: str) -> str:
    path = MODULES[module].relative_to(ROOT)
    return f"{path.parent}/" if path.name == "__init__.py" else str(path)


def nightly() -> str:
    """Build the page `tests/NIGHTLY.md`."""
    rows = ["| module | only in `make nightly` | what shows the same on every landing |", "|---|---|---|"]
    for module in repetitions():
        parts = [*module.whole, *([f"cases of {', '.join(module.cases)}"] if module.cases else [])]
        for every, names in module.sampled.items():
            parts.append(f"{every - 1} of {every} cases of {', '.join(names)}")
        rows.append(f"| `{module.module}` | {'; '.join(parts)} | {module.shown or 'the other cases'} |")
    return "\n\n".join([NOTE, "# What only `make nightly` runs", NIGHTLY, "\n".join(rows)]) + "\n"


PAGES: Final = {
    "docs/architecture.md": architecture,
    "docs/configuration.md": configuration,
    "docs/errors.md": errors_page,
    "tests/NIGHTLY.md": nightly,
}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (ROOT / name).write_text(make())
