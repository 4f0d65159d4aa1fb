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
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from tailer import errors
from tailer.config.shapes import FileShape, PipelineShape, SparkShape, StoreShape
from tailer.errors import Retry, TailerError
from tailer.formats.delta.catalog.options import UnityOptions
from tailer_sinks import stdout
from tailer_sinks.delta import options as delta
from tailer_sinks.files import sink as files
from tailer_sinks.http import options as http
from tailer_sinks.kafka import options as kafka
from tailer_sinks.kafka.clients.settings import ClientSettings
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
DOCS: Final = ROOT / "docs"

SECTIONS: Final[tuple[tuple[str, str, type[msgspec.Struct]], ...]] = (
    ("The file", "Keys at the top of the file.", FileShape),
    (
        "[stores.NAME]",
        "One table for each store that needs options. Keys and tokens come from the places where AWS's own tools look.",
        StoreShape,
    ),
    (
        "[pipelines.NAME]",
        (
            "One table for each pipeline; the name is part of its progress, so keep it. The table `[defaults]` has the "
            "same keys but `table`, for all pipelines that do not set them."
        ),
        PipelineShape,
    ),
    ('[pipelines.NAME.sink], kind = "kafka"', "See [kafka.md](kafka.md).", kafka.Options),
    (
        '[pipelines.NAME.sink.client], kind = "kafka"',
        "Settings of the client, as Kafka spells them; write their names in quotes.",
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
    ("[spark]", "For `engine`, see [spark.md](spark.md).", SparkShape),
)

INTRO: Final = (
    "`tailer check` checks `tailer.toml`, or the file that `--config` names, and says everything that is wrong with\n"
    "it. Every key can also be set in the environment: `TAILER_PIPELINES__ORDERS__SINK__TOPIC` is `topic` of the sink\n"
    "of the pipeline `orders`, and `..._SINK__CLIENT__SASL_PASSWORD` is `sasl.password` in the sink's table `client`.\n"
    "The environment wins over the file, and is the place for secrets.\n\n"
    "Paths are relative to the folder of the file, and `~` is the home folder. Variables are not replaced: a path\n"
    "with a folder `$HOME` or `${NAME}` is refused. Write a folder that has such a name as a URI: `file:/data/$HOME`."
)
INTRO_OF_ERRORS: Final = """\
Every error names the thing and the next step: on the command line after `hint:`, and in the
[log of the daemon](operations.md#the-log) and `tailer status --json` as `error` and `hint`. The exit code of a command
is that of the most severe error.

A pipeline that is *retried* waits, reads its progress from the sink and tries again. After ten minutes without any
success it stops, and begins again by itself after 1 minute, then 2, 4, up to 30. One that *stops* waits for a person,
unless `on_data_loss` gets past the error."""
AFTER: Final = {
    Retry.TIMED: "is retried",
    Retry.ASK: "is retried",
    Retry.BRIEF: "is retried for ten seconds, and then stops and begins again by itself as above",
    Retry.ONCE: "is retried once if it has just begun, and then stops",
    Retry.MANUAL: "stops",
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
        return {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}[kind]
    if isinstance(kind, EnumType):
        values: list[Any] = list(kind)
        return ", ".join(f"`{each.value}`" for each in values)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(kind))
    if get_origin(kind) is Annotated:
        return type_text(get_args(kind)[0])
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        return f"list of {type_text(item)}" + "s" * (item is str)
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
    if value is None or value in ("", [], {}) or isinstance(value, msgspec.Struct):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:,}`" if isinstance(value, int) else f"`{getattr(value, 'value', value)}`"


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
        rows = ["| key | values | default | what it is |", "|---|---|---|---|"]
        for name, spelled, annotation, default, required in sorted(settings(kind), key=lambda row: not row[-1]):
            shown = "required" if required else default_text(default)
            rows.append(f"| `{spelled}` | {type_text(annotation)} | {shown} | {texts[name]} |")
        parts += [f"## {title}", intro, "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def error_classes(kind: type[TailerError]) -> Iterator[type[TailerError]]:
    """Return the classes below `kind` in `tailer.errors`, in the order of their definition."""
    for each in kind.__subclasses__():
        if each.__module__.startswith("tailer.errors"):
            yield each
            yield from error_classes(each)


def errors_page() -> str:
    """Build the page `errors.md`."""
    tree = inspect.getdoc(errors) or ""
    parts = [
        NOTE,
        "# Errors",
        INTRO_OF_ERRORS,
        f"```text\n{tree[tree.index('TailerError') :].partition(chr(10) * 2)[0].rstrip()}\n```",
    ]
    for kind in error_classes(TailerError):
        about = inspect.getdoc(kind) or ""
        shown = [f"## {kind.__name__}", " ".join(about.split())]
        if "sentence" in kind.__dict__ and set(NAMES.findall(kind.sentence)) <= kind.__dataclass_fields__.keys():
            shown.append(f"Text: `{kind.sentence}`")
        if kind.next_step:
            step = "the hint of the error says it." if "{remedy}" in kind.next_step else kind.next_step
            shown.append(f"Next step: {step}")
        shown.append(f"The pipeline {AFTER[kind.retry]}. Exit code {kind.exit_code}.")
        parts += shown
    return "\n\n".join(parts) + "\n"


NIGHTLY: Final = """\
Repetition, read from the markers `nightly` and `sampled(n)`. The last column is from the docstring of the module.
Beside these:

- all tests with Google's store (`fake_gcs`): the same tests run in Azure, with the same client;
- five times as many random cases, ten times where hypothesis draws many, with a seed that is printed and that
  `LAKE_TAILER_SEED` repeats (`support/seeds.py`);
- Spark Connect (`make test-connect`), `make check-deploy` and `make fuzz`."""
HOUSE: Final = """\
These modules are the program, in the order to read them:

{order}

The *spine* is what every row of every pipeline passes:

{spine}

A *room* is what somebody who does not use it never opens. It may import the spine. The spine imports it inside the
function that needs it, or is named in `tests/house.py` with the reason.

{rooms}

The spine may have {most} lines, and all of the product {product}; `tests/unit/test_house.py` counts them. Who raises
one of these numbers adds here what was refused in its place."""
HOUSE_END: Final = "<!-- End of what is written by `python -m tests.generate_docs`. -->"
SIZE: Final = re.compile(r"^\| (.+?) \| ([\d,]+) \|", re.MULTILINE)


def architecture() -> str:
    """Build the page `architecture.md`: its first part from the house, the rest as it is."""
    page = (DOCS / "architecture.md").read_text()
    before = {name: int(size.replace(",", "")) for name, size in SIZE.findall(page)}

    def row(name: str, size: int, text: str) -> str:
        """A size is about right, so that it seldom changes: it stays until it is wrong by more than a tenth."""
        if not 0.9 * size <= (shown := before.get(name, 0)) <= 1.1 * size:
            shown = round(size, min(0, 2 - len(str(size))))
        return f"| {name} | {shown:,} | {text} |"

    order = [row(f"`{_path(module)}`", sizes()[module], text) for module, text in READING_ORDER.items()]
    spine = [row(_folders(part), lines(part), part.text) for part in SPINE]
    rooms = [row(f"{_folders(part)}: [{part.page}]({part.page}.md)", lines(part), part.text) for part in ROOMS]
    texts = HOUSE.format(
        order=_table("module", "content", order),
        spine=_table("folder", "content", spine),
        rooms=_table("room", "read when", rooms),
        most=f"{SPINE_LINES:,}",
        product=f"{PRODUCT_LINES:,}",
    )
    return f"{NOTE}\n\n# Architecture\n\n{texts}\n\n{HOUSE_END}\n{page.partition(HOUSE_END)[2].removeprefix(chr(10))}"


def _table(first: str, last: str, rows: list[str]) -> str:
    return "\n".join([f"| {first} | lines, about | {last} |", "|---|---|---|", *rows])


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
