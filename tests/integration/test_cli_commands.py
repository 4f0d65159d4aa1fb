"""The command `tailer` and its verbs `check` and `plan`: output and exit codes."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tailer.cli import FIRST_STEPS, GUIDE, VERBS
from tailer.cli import tailer as group
from tailer.plan import ChangePlan, Regime
from tests.support.cases import cases
from tests.support.daemon.commands import Orders, in_terminal, tailer
from tests.support.follow import plans
from tests.support.tables.golden import golden_delta

GOOD = """
[pipelines.orders]
table = "orders"
start = 3
columns = ["id"]
sink = {kind = "delta", path = "copy"}
[pipelines.files]
table = "orders"
sink = {kind = "files", path = "out"}
"""


def test_the_version_is_that_of_the_distribution() -> None:
    done = tailer("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"lake-tailer \d+\.\d+\.\d+\n", done.stdout)


def test_the_overview_names_every_verb_and_loads_none() -> None:
    script = (
        "import sys; from tailer.__main__ import main; sys.argv = ['tailer', '--help']\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'pyarrow', 'deltalake', 'pyspark', 'anyio', 'rich', 'tailer.plan'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    *shown, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    for verb, purpose in VERBS.items():
        assert any(line.split(maxsplit=1) == [verb, purpose] for line in shown), verb


@cases("verb", VERBS)
def test_a_verb_says_of_itself_what_the_overview_says_of_it(verb: str) -> None:
    command = group.get_command(click.Context(group), verb)
    assert isinstance(command, click.Command)
    assert (command.name, (command.help or "").splitlines()[0]) == (verb, VERBS[verb])
    _, example, page = GUIDE[verb]
    assert command.make_context(verb, shlex.split(example)).command is command
    assert (Path(__file__).parents[2] / "docs" / page).is_file()
    assert f"Example: tailer {verb} {example}\nMore: docs/{page}\n" in tailer(verb, "--help").stdout.replace("  ", "")


@pytest.mark.parametrize("arguments", [(), ("progress",)])
def test_without_a_verb_there_is_help_and_a_usage_error(arguments: tuple[str, ...]) -> None:
    done = tailer(*arguments)
    assert done.returncode == 2
    assert "Commands:" in done.stderr
    assert arguments or all(f"  {step} " in done.stderr for step, _ in FIRST_STEPS)


@pytest.mark.parametrize("arguments", [("tial",), ("--nonsense",), ("plan",), ("plan", "x", "minus one")])
def test_a_usage_error_is_two_lines_and_ends_with_2(arguments: tuple[str, ...]) -> None:
    done = tailer(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: .+\nhint: See `tailer[a-z ]* --help`\.\n", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(("tial",), "tail"), (("Check",), "check"), (("progres", "show"), "progress"), (("progress", "shwo"), "show")],
)
def test_a_verb_that_is_misspelled_is_suggested(arguments: tuple[str, ...], meant: str) -> None:
    done = tailer(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Did you mean '{meant}'?" in done.stderr.splitlines()[0]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_for_shells(shell: str) -> None:
    done = tailer(_TAILER_COMPLETE=f"{shell}_source")
    assert (done.returncode, done.stderr) == (0, "")
    assert "_TAILER_COMPLETE" in done.stdout


@cases(
    ("words", "expected"),
    [
        ("tailer ", set(VERBS)),
        ("tailer pr", {"progress"}),
        ("tailer progress ", {"show", "reset"}),
        ("tailer tail --net", {"--net-changes"}),
        ("tailer tail orders --from e", {"earliest"}),
        ("tailer tail orders --format ", {"table", "jsonl", "csv"}),
    ],
)
def test_words_are_completed(words: str, expected: set[str]) -> None:
    number = len(words.split()) - (not words.endswith(" "))
    done = tailer(_TAILER_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(number))
    assert (done.returncode, done.stderr) == (0, "")
    assert {line.partition(",")[2] for line in done.stdout.split()} == expected


@pytest.mark.parametrize(("verb", "kind"), [("tail", "dir"), ("plan", "dir"), ("check --config", "file")])
def test_a_shell_completes_paths_by_itself(verb: str, kind: str) -> None:
    done = tailer(_TAILER_COMPLETE="bash_complete", COMP_WORDS=f"tailer {verb} ", COMP_CWORD=str(1 + len(verb.split())))
    assert done.stdout.strip() == f"{kind},"


def test_a_bug_of_ours_is_a_traceback_and_ends_with_1() -> None:
    script = (
        "import sys, tailer.config.settings, tailer.cli.check as check\n"
        "def broken(path): raise KeyError('orders')\n"
        "check.examine = broken\n"
        "from tailer.__main__ import main; sys.argv = ['tailer', 'check']; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert "error: KeyError: 'orders'\nhint: This is a bug in lake-tailer: please report it" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("verb", "module"),
    [("run", "click"), ("run", "tailer.daemon.serve"), ("run", "pyarrow"), ("verify", "anyio"), ("plan", "rich")],
)
def test_a_signal_while_modules_are_imported_ends_with_130(verb: str, module: str, number: signal.Signals) -> None:
    script = (
        "import os, sys\n"
        "from tailer.__main__ import main\n"
        f"def hook(event, names): event == 'import' and names[0] == {module!r} and os.kill(os.getpid(), {number})\n"
        f"sys.addaudithook(hook); sys.argv = ['tailer', {verb!r}, 'x']; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_good_configuration_is_summed_up(tmp_path: Path) -> None:
    (tmp_path / "tailer.toml").write_text(GOOD)
    done = tailer("check", "--config", "tailer.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"ok     pipeline orders: {tmp_path}/orders to delta {tmp_path}/copy, from version 3, columns id",
        f"ok     pipeline files: {tmp_path}/orders to files {tmp_path}/out, from earliest",
        "ok     tailer.toml",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["tailer.toml"]


def test_all_faults_of_a_configuration_are_reported(tmp_path: Path) -> None:
    (tmp_path / "tailer.toml").write_text("drain_s = 'x'" + GOOD + "tabel = 'x'\n[pipelines.new]\ntable = 'x'")
    done = tailer("check", "--config", "tailer.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.splitlines() == [
        "failed tailer.toml: drain_s: must be a finite number of at least 0",
        "       hint: Write it without quotes.",
        f"ok     pipeline orders: {tmp_path}/orders to delta {tmp_path}/copy, from version 3, columns id",
        "failed pipeline files",
        "       tailer.toml: pipelines.files.tabel: no such option",
        "       hint: Did you mean 'table'?",
        "failed pipeline new",
        "       tailer.toml: pipelines.new.sink: is missing",
        "       hint: Add a table [pipelines.NAME.sink] with the key kind.",
        "failed tailer.toml: 3 faults",
    ]


@pytest.mark.parametrize("arguments", [("run",), ("progress", "show"), ("progress", "reset", "orders", "--to", "0")])
def test_no_verb_works_with_a_faulty_configuration(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "tailer.toml").write_text(GOOD + "tabel = 'x'")
    done = tailer(*arguments, "--config", tmp_path / "tailer.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error: {tmp_path}/tailer.toml: pipelines.files.tabel: no such option",
        "hint: Did you mean 'table'?",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["tailer.toml"]


@pytest.mark.golden
def test_a_plan_as_json_is_the_plan() -> None:
    table = golden_delta("cdf-table")
    done = tailer("plan", table, 2, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert ChangePlan.from_json(done.stdout) == plans(table, 2, 2)[0]
    assert done.stdout.count("\n") == 1


def test_a_plan_on_a_terminal_is_readable(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    orders.insert(1, 2)
    code, shown = in_terminal("plan", orders.path, 0)
    assert code == 0
    assert f"{orders.path}: version 0, WRITE, " in shown
    assert "1 file, " in shown
    assert "the rows below, as they are" in shown
    assert "columns: id int64, amount double" in shown
    assert "all are inserted" in shown
    piped = tailer("plan", orders.path, 0).stdout.splitlines()
    assert piped[1].endswith("the rows below, as they are")
    assert piped[2:4] == ["columns: id int64, amount double", "task\trows\tof the file\tsize\tpartition"]
    assert piped[4].startswith("0\tall are inserted\t")
    code, text = in_terminal("plan", orders.path, 0, "--json")
    plan = ChangePlan.from_json(text)
    assert (code, plan.version, plan.regime) == (0, 0, Regime.FILES)
    assert plan.tasks[0].uri.rpartition("/")[2] in shown


@pytest.mark.golden
def test_a_readable_plan_says_which_rows_of_a_file_changed() -> None:
    _, shown = in_terminal("plan", golden_delta("basic-dv-with-checkpoint"), 30)
    assert "of 7 that are marked as deleted, those that were not before" in shown
    assert "of 6 that were marked as deleted, those that no longer are" in shown
    _, shown = in_terminal("plan", golden_delta("cdf-table"), 1)
    assert "change files, which say what changed" in shown


@pytest.mark.golden
@pytest.mark.parametrize(
    ("table", "version", "code", "error"),
    [
        ("{golden}", "9", 3, "version 9 does not exist yet (latest is 3)"),
        ("{golden}", "-1", 2, "-1 is not in the range"),
        ("{golden}/nowhere", "0", 3, "not a Delta table"),
        ("hdfs://x/y", "0", 2, "hdfs:// is not a store that can be read"),
    ],
)
def test_a_plan_that_cannot_be_made_is_named(table: str, version: str, code: int, error: str) -> None:
    done = tailer("plan", table.format(golden=golden_delta("cdf-table")), "--", version)
    assert (done.returncode, done.stdout) == (code, "")
    assert error in done.stderr.splitlines()[0]
