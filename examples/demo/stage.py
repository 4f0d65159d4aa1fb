"""The order of events of the demonstration, and their display."""

import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio
from rich.console import Console
from rich.status import Status
from rich.text import Text

from examples.demo.follower import DaemonDied, Event, Follower
from examples.demo.writer import EFFECTS, Commit, Verdict, Writer
from tailer.config.pipelines import Settings
from tailer.config.settings import load
from tailer.daemon.standing import survey

__all__ = ["play"]

ROUNDS: Final = 5
ALONE: Final = 3  # commits that are made while the daemon is dead
SHOWN_EACH: Final = 2
CATCH_UP_S: Final = 60.0

CONFIG: Final = """\
state_table = "state"

[pipelines.copy]
table = "orders"
start = "earliest"
[pipelines.copy.sink]
kind = "delta"
path = "orders_changes"

[pipelines.screen]
table = "orders"
start = "earliest"
[pipelines.screen.sink]
kind = "stdout"
format = "jsonl"
"""

SIGNS: Final = {
    "insert": ("+", "green"),
    "delete": ("-", "red"),
    "update_preimage": ("~-", "yellow dim"),
    "update_postimage": ("~+", "yellow"),
}


def play(console: Console, rounds: int = ROUNDS, *, of_lance: bool = False) -> bool:
    """Run the demonstration in `rounds` of five commits; return whether the comparison succeeded.

    `of_lance`: follow a Lance dataset, and no Delta table.

    All its files are removed at the end.

    Raises `ConfigError` if something must be installed first.
    """
    show = _Show(console)
    with ExitStack() as stack:
        scratch = TemporaryDirectory(prefix="lake-tailer-demo-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(scratch))
        config = folder / "demo.toml"
        config.write_text(CONFIG)
        show.say("demo", f"in {folder}, which is removed at the end; Ctrl-C stops the demonstration")
        shop = _lance_shop(folder, rounds) if of_lance else _spark_shop(folder, rounds, show, stack)
        settings = load(config)
        with show.waiting(f"creating {shop.scene}"):
            show.commit(shop.open(), shop.name)
        follower = Follower(config, folder / "daemon.log", show.event)
        try:
            _trade(shop, stack.enter_context(follower), show)
            with show.waiting("waiting until everything is delivered"):
                _catch_up(settings, follower)
            follower.finish()
        except DaemonDied as death:
            show.say("demo", str(death), "red")
            return False
        with show.waiting(f"comparing the events with {shop.reference}"):
            verdict = shop.judge(folder / "orders_changes")
        show.verdict(verdict, shop)
        return verdict.proved


def _spark_shop(folder: Path, rounds: int, show: "_Show", stack: ExitStack) -> Writer:
    from examples.demo.shop import Shop  # noqa: PLC0415 - Spark is an extra
    from examples.demo.spark import local_spark  # noqa: PLC0415 - Spark is an extra

    with show.waiting("starting Spark"):
        return Shop(stack.enter_context(local_spark(folder)), folder / "orders", rounds)


def _lance_shop(folder: Path, rounds: int) -> Writer:
    from examples.demo.lance_shop import LanceShop  # noqa: PLC0415 - pylance is an extra

    return LanceShop(folder / "orders", rounds)


def _trade(shop: Writer, follower: Follower, show: "_Show") -> None:
    """Make the commits while the daemon follows, is killed, and is started again."""
    show.say("tailer", "the daemon runs: orders -> a Delta table (exactly once), orders -> this screen")
    kill_at = shop.commits * 2 // 5
    for number, commit in enumerate(shop.trade(), start=1):
        show.commit(commit, shop.name)
        if number == kill_at:
            # At no moment in particular: the commit just made is being delivered, or is not.
            time.sleep(random.uniform(0, 0.3))
            follower.kill()
            show.say("tailer", f"kill -9; {shop.name} goes on without it", "bold red")
        elif number == kill_at + ALONE:
            pid = follower.start()
            show.say(
                "tailer", f"started again (process {pid}): it reads its progress back from each sink", "bold green"
            )
        follower.check()


def _catch_up(settings: Settings, follower: Follower) -> None:
    deadline = time.monotonic() + CATCH_UP_S
    while time.monotonic() < deadline:
        standings, errors = anyio.run(survey, settings)
        if not errors and all(standing.lag == 0 for standing in standings):
            return
        follower.check()
        time.sleep(0.3)
    raise DaemonDied(f"the daemon did not catch up within {CATCH_UP_S:g} s")


class _Show:
    """The lines on the screen: commits, events, and the result."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._shown: Counter[int] = Counter()

    def say(self, who: str, what: str, style: str = "") -> None:
        """Print a line with the seconds since the beginning and its subject."""
        elapsed = time.monotonic() - self._began
        line = Text.assemble((f"{elapsed:6.1f} s  ", "dim"), (f"{who:<7}", "bold"), (what, style))
        self._print(line)

    def waiting(self, what: str) -> Status:
        """Print a step that takes a while; on a terminal show a spinner."""
        self.say("demo", what)
        return self._console.status(what)

    def commit(self, commit: Commit, writer: str) -> None:
        """Print a commit of the writer."""
        rows = "" if commit.rows is None else f" of {commit.rows} rows"
        self.say(writer, f"v{commit.version:<3} {commit.operation}{rows}", "cyan")

    def event(self, event: Event) -> None:
        """Print an event, if it is one of the first of its version. Called from the thread that reads the daemon."""
        version, kind = event.pop("_commit_version"), event.pop("_change_type")
        del event["_commit_timestamp"]
        self._shown[version] += 1
        if self._shown[version] > SHOWN_EACH:
            return
        sign, style = SIGNS.get(kind, ("?", "magenta"))
        values = " ".join(f"{name}={value}" for name, value in event.items())
        more = " ..." if self._shown[version] == SHOWN_EACH else ""
        self.say("tailer", f"v{version:<3} {sign:<2} {values}{more}", style)

    def verdict(self, verdict: Verdict, shop: Writer) -> None:
        """Print the result."""
        commits = ", ".join(f"{count} {operation}" for operation, count in shop.operations.items())
        events = ", ".join(f"{verdict.events.get(kind, 0)} {kind}" for kind in EFFECTS)
        lines = (
            (f"commits by {shop.name}", f"{shop.operations.total()} ({commits})"),
            ("events delivered", f"{sum(verdict.events.values())} ({events}), with one kill -9"),
            (f"compared to {shop.reference}", f"{verdict.missing} missing, {verdict.unexpected} too many"),
            ("rows of the table", str(verdict.rows)),
            ("compared to the fold of the events", f"{verdict.lacking} missing, {verdict.left_over} too many"),
        )
        width = max(len(name) for name, _ in lines) + 2
        self._console.print()
        for name, value in lines:
            self._console.print(Text.assemble((f"{name:<{width}}", "bold"), value), soft_wrap=True)
        proved = Text("PROVED: every change was delivered, exactly once", "bold green")
        self._print(proved if verdict.proved else Text("FAILED: see the counts above", "bold red"))

    def _print(self, line: Text) -> None:
        # Cut on a terminal, whole in a file: there rich would cut at 80 columns even with an ellipsis at the end.
        if self._console.is_terminal:
            self._console.print(line, no_wrap=True, overflow="ellipsis")
        else:
            self._console.print(line, soft_wrap=True)
