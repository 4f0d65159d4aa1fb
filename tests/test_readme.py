"""README and docs as tests: every block of a page runs, in order, in one folder, as a reader would try it.

The folder holds a Delta table `orders` (columns `id`, `customer`, `amount`; versions 0 to 3: created, appended to,
updated, deleted from). What the README may contain:

- ```toml: valid TOML. One with a `[pipelines...]` table is a configuration: it must pass `tailer check`, and is
  saved as `tailer.toml` for the blocks after it.
- ```console: lines `$ tailer ...` are run by bash and must end with 0; one that follows is sent what Ctrl-C sends
  after a while. `$ make target` must name a target. Other commands are not for this kind of block. A line that ends
  in `\\` goes on in the next one. Lines without `$` that follow a command are its standard output, compared as
  doctest compares: `...` stands for any text. A command that ends in ` &` runs beside the blocks after it, until
  the end of the page.
- ```python: runs as a script, with an interpreter whose environment is not activated. A ```text block right after it
  is its standard output, compared in the same way.
- ```json: one document, or one per line.
- ```bash: parses; not run. ```text elsewhere, ```sql and ```mermaid: for the eye. No other language.
- 127.0.0.1:9464, the port of metrics, stands for a free port.
- `<file>.py::<test or class of tests>` anywhere, as in the page of guarantees: that test exists. The file may be named
  as it is below `tests/`; `::<test>` alone is in the file that was named before it.
"""

import ast
import doctest
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.cases import cases
from tests.support.servers.ports import free_ports

ROOT: Final = Path(__file__).resolve().parents[1]
PROSE: Final = ("mermaid", "sql", "text")
IDLE_S: Final = 5
SOME_S: Final = 0.25  # an idle daemon takes some 3 % of a core
END_S: Final = 300
AGAIN_S: Final = 10
METRICS: Final = "127.0.0.1:9464"

FENCE: Final = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
OUTPUT: Final = re.compile(r"\s*```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUNS_TAILER: Final = re.compile(r"(?:\w+=\S+ )*tailer\b")
NAMED_TEST: Final = re.compile(r"`([\w/]+\.py)?((?:::\w+)*)`")


class BrokenPromiseError(AssertionError):
    """A statement of a page that is not true."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line where it starts, and the output that follows a script."""

    language: str
    text: str
    line: int
    output: str | None = None


def blocks(readme: str) -> Iterator[Block]:
    """Yield every fenced block that names a language."""
    for found in FENCE.finditer(readme):
        indent, language, text = found.groups()
        plain = "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
        output = OUTPUT.match(readme, found.end()) if language == "python" else None
        line = readme.count("\n", 0, found.start()) + 1
        yield Block(language, plain, line, output[1] if output is not None else None)


def make_orders(folder: Path) -> None:
    """Write the table of the README's commands."""
    path = str(folder / "orders")
    for ids in ([1, 2, 3], [4, 5]):
        rows = {"id": ids, "customer": [f"customer-{i}" for i in ids], "amount": [10.0 * i for i in ids]}
        write_deltalake(path, pa.table(rows), mode="append")
    DeltaTable(path).update(updates={"amount": "amount + 1"}, predicate="id = 2")
    DeltaTable(path).delete("id = 4")


def await_end(process: "subprocess.Popen[str]") -> None:
    """Wait until a process ends, or until neither it nor its children have computed anything for a while."""
    known = psutil.Process(process.pid)
    used, since = 0.0, time.monotonic()
    while process.poll() is None and time.monotonic() - since < IDLE_S:
        time.sleep(0.1)
        total = 0.0
        with suppress(psutil.NoSuchProcess):
            total = sum(sum(each.cpu_times()[:2]) for each in (known, *known.children(recursive=True)))
        if abs(total - used) > SOME_S:
            used, since = total, time.monotonic()


def variables(*, activated: bool) -> dict[str, str]:
    """Return the variables of a command; `activated`: whether this Python's environment is first on the search path."""
    environment = Path(sys.executable).parent
    folders = [each for each in os.environ["PATH"].split(os.pathsep) if Path(each) != environment]
    return {**os.environ, "PATH": os.pathsep.join([str(environment)] * activated + folders)}


@contextmanager
def beside(command: str, folder: Path) -> Iterator[None]:
    """Run a command until the end, and then send it what Ctrl-C sends."""
    with (folder / "beside.log").open("a") as said:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=variables(activated=True),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield
        if process.poll() is not None:
            said_text = (folder / "beside.log").read_text()
            raise BrokenPromiseError(f"`{command}` ended with {process.returncode} before the page:\n{said_text}")
    finally:
        interrupt(process)


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """End a process as Ctrl-C does, pressed again every few seconds: one that is just starting may miss the signal."""
    deadline = time.monotonic() + END_S
    try:
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(AGAIN_S)
        if process.poll() is None:
            raise BrokenPromiseError(f"Ctrl-C does not end process {process.pid}")
    finally:
        process.kill()
        process.wait()


def run(command: list[str], folder: Path, *, activated: bool = True) -> str:
    """Run a command to its end, with Ctrl-C's signal when it has nothing left to do; return its output.

    `activated`: whether the environment of this Python comes first on the search path.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as said, tempfile.TemporaryFile("w+", errors="replace") as told:
        with subprocess.Popen(
            command,
            cwd=folder,
            env=variables(activated=activated),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=told,
            start_new_session=True,
            text=True,
        ) as process:
            await_end(process)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, signal.SIGKILL)
                raise BrokenPromiseError(f"`{command[-1]}` does not end") from error
        said.seek(0)
        told.seek(0)
        output, complaints = said.read(), told.read()
    if process.returncode:
        raise BrokenPromiseError(f"`{command[-1]}` ended with {process.returncode}:\n{output}{complaints}")
    return output


def compare(wanted: str, got: str, what: str) -> None:
    """Compare output with the README, as doctest does; blank lines at the end do not count."""
    wanted, got = (f"{text.rstrip()}\n" for text in (wanted, got))
    if not doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS):
        raise BrokenPromiseError(f"{what} printed\n{got}and not\n{wanted}")


def run_console(text: str, folder: Path, page: ExitStack) -> None:
    """Run the lines after a `$`, and compare what follows them; what goes on beside other blocks ends with `page`."""
    before, *commands = re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)
    if before.strip():
        raise BrokenPromiseError("there is output before the first command")
    for each in commands:
        command, _, wanted = each.partition("\n")
        if command.startswith("make "):
            require_targets(shlex.split(command, comments=True)[1:])
        elif RUNS_TAILER.match(command) and command.endswith(" &"):
            page.enter_context(beside(command.removesuffix(" &"), folder))
        elif RUNS_TAILER.match(command):
            output = run(["bash", "-o", "pipefail", "-c", command], folder)
            if wanted.strip():
                compare(wanted, output, f"`{command}`")
        else:
            raise BrokenPromiseError(f"`{command}` is not run by anyone: a console block is for tailer and make")


def require_targets(arguments: list[str]) -> None:
    """Check that the Makefile has each target that `make` is called with, besides its variables."""
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets = {each for each in arguments if "=" not in each}
    if missing := targets - known:
        raise BrokenPromiseError(f"the Makefile has no target {', '.join(sorted(missing))}")


def run_toml(text: str, folder: Path) -> None:
    """Parse it; if it is a configuration, check and save it."""
    if "pipelines" in tomllib.loads(text):
        (folder / "tailer.toml").write_text(text)
        run(["bash", "-c", "tailer check"], folder)


def run_python(text: str, folder: Path, wanted: str | None) -> None:
    """Run it as a script without an activated environment, and compare its output."""
    script = folder / "readme_block.py"
    script.write_text(text)
    output = run([sys.executable, script.name], folder, activated=False)
    if wanted is not None:
        compare(wanted, output, "the script")


def run_json(text: str, _folder: Path) -> None:
    """Parse it, whole or line by line."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        for line in text.splitlines():
            json.loads(line)


def run_bash(text: str, folder: Path) -> None:
    """Parse it."""
    run(["bash", "-n", "-c", text], folder)


RUNNERS: Final[dict[str, Callable[[str, Path], None]]] = {
    "bash": run_bash,
    "json": run_json,
    "toml": run_toml,
}


def run_block(block: Block, folder: Path, page: ExitStack) -> None:
    """Check a block by the rule of its language."""
    if block.language == "python":
        run_python(block.text, folder, block.output)
    elif block.language == "console":
        run_console(block.text, folder, page)
    elif block.language in RUNNERS:
        RUNNERS[block.language](block.text, folder)
    elif block.language not in PROSE:
        raise BrokenPromiseError(f"no one runs {block.language}")


def missing_tests(readme: str) -> Iterator[str]:
    """Return every test that the README names and that does not exist."""
    file = ""
    for path, names in NAMED_TEST.findall(readme):
        file = path or file
        source = next((each.read_text() for each in (ROOT / file, ROOT / "tests" / file) if each.is_file()), "")
        tests = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        known = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, tests)}
        if not known.issuperset(names.split("::")[1:]):
            yield f"there is no test {file}{names}"


def broken_promises(readme: str, folder: Path) -> list[str]:
    """Return all false statements of a page, each with its line."""
    make_orders(folder)
    broken = list(missing_tests(readme))
    (port,) = free_ports(1)
    try:
        with ExitStack() as page:
            for block in blocks(readme.replace(METRICS, f"127.0.0.1:{port}")):
                try:
                    run_block(block, folder, page)
                except (BrokenPromiseError, ValueError) as error:
                    broken.append(f"line {block.line} ({block.language}): {error}")
    except BrokenPromiseError as error:
        broken.append(str(error))
    return broken


PAGES: Final = (
    "README.md",
    "CONTRIBUTING.md",
    "examples/README.md",
    "deploy/README.md",
    "deploy/runbook.md",
    *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
)
WITH_SPARK: Final = ("docs/spark.md",)
PAGES_OF_TESTS: Final = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "tests").glob("**/[A-Z]*.md"))
GUARANTEES: Final = ("docs/guarantees.md", "tests/GUARANTEES.md")
NOT_GUARANTEED: Final = "\n## What is not guaranteed\n"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.spark) if page in WITH_SPARK else page for page in PAGES],
)
def test_every_block_of_the_readme_runs(tmp_path: Path, page: str) -> None:
    broken = broken_promises((ROOT / page).read_text(), tmp_path)
    assert not broken, "\n".join(broken)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", each)).lower().replace(" ", "-") for each in headings}


@cases("page", [*PAGES, *PAGES_OF_TESTS])
def test_every_link_leads_somewhere(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", (ROOT / page).read_text()):
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


@cases("page", PAGES_OF_TESTS)
def test_a_page_of_tests_names_tests_that_exist(page: str) -> None:
    assert not list(missing_tests((ROOT / page).read_text()))


@cases("page", GUARANTEES)
def test_each_guarantee_ends_with_a_test(page: str) -> None:
    text = (ROOT / page).read_text()
    guaranteed, _, _ = text.partition(NOT_GUARANTEED)
    lines = re.findall(r"^[-|] .+", guaranteed, re.MULTILINE)
    assert lines
    for line in lines:
        named = list(NAMED_TEST.finditer(line))
        assert named, line
        assert not line[named[-1].end() :], line
        files = [each[1] for each in named if each[1]]
        assert not [file for file in files if not any((ROOT / top / file).is_file() for top in ("", "tests"))], line
    assert not list(missing_tests(text))


def test_the_guarantees_are_one_page() -> None:
    assert len((ROOT / GUARANTEES[0]).read_text().split()) <= 1100


def test_the_addresses_of_alerts_lead_into_the_runbook() -> None:
    addresses = re.findall(r"runbook_url: (\S+)#(\S+)", (ROOT / "deploy/prometheus/alerts.yml").read_text())
    assert addresses
    assert not [anchor for page, anchor in addresses if anchor not in anchors(ROOT / page)]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_readme_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    readme = (ROOT / "README.md").read_text()
    assert not [each for each in extras if f"`{each}`" not in readme and f"[{each}]" not in readme]


KEPT = """
```toml
[project]
name = "not a configuration"
```

| guarantee | test |
|---|---|
| blocks run | `tests/test_readme.py::test_every_block_of_the_readme_runs`, `::blocks` |

1. As part of a list:
   ```console
   $ make demo test  # a word about it
   output of make is not compared
   $ tailer --version | \\
     grep lake-tailer
   ...lake-tailer...
   ```

```python
from deltalake import DeltaTable

print(DeltaTable("orders").version())
```

```text
3
```

```console
$ tailer tail orders --from latest &
```

```json
{"a": 1}
{"a": 2}
```

```bash
for table in a b; do echo "$table"; done
```
"""


def test_a_readme_that_keeps_its_word(tmp_path: Path) -> None:
    assert broken_promises(KEPT, tmp_path) == []


# Ends when another command of the page has ended.
AWAIT_AN_END: Final = """\
import os, psutil, time
page = psutil.Process(os.getppid())
while not any(each.status() == psutil.STATUS_ZOMBIE for each in page.children()):
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("readme", "complaint"),
    [
        ("```console\n$ make sense\n```", "no target sense"),
        ("```console\n$ tailer no-such-verb\n```", "`tailer no-such-verb` ended with 2"),
        ("```console\n$ curl example.org\n```", "not run by anyone"),
        ('```toml\n[pipelines.x]\ntable = ""\n```', "`tailer check` ended with 2"),
        ("```toml\n= 1\n```", "line 1 (toml)"),
        ("```python\nassert False\n```", "AssertionError"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```", "the script printed\n1\nand not\n2"),
        ("```console\n$ tailer --version\nsomething else\n```", "and not\nsomething else"),
        ("```console\nnothing was run\n```", "output before the first command"),
        ('```json\n{"a": }\n```', "line 1 (json)"),
        (f"```console\n$ tailer tail nowhere &\n```\n```python\n{AWAIT_AN_END}```", "before the page"),
        ("```sh\nls\n```", "no one runs sh"),
        ("```bash\nfor x in\n```", "line 1 (bash)"),
        ("see `tests/test_readme.py::test_nothing`", "no test tests/test_readme.py::test_nothing"),
        ("see `tests/nowhere.py::test_nothing`", "no test tests/nowhere.py::test_nothing"),
        ("see `test_readme.py`, `::test_nothing`", "no test test_readme.py::test_nothing"),
    ],
)
def test_a_readme_that_does_not(readme: str, complaint: str, tmp_path: Path) -> None:
    broken = broken_promises(readme, tmp_path)
    assert len(broken) == 1
    assert complaint in broken[0]
