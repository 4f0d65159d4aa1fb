"""Run the daemon with all sinks under load and faults for hours, and print one table.

    python -m tests.soak --hours 24 [--seed N] [--out FILE]
    python -m tests.soak --epochs 1 --seed N                 one epoch, such as one that found something

A soak is a row of epochs with the seeds N, N + 1 and so on. After each of them the table is written to FILE, and what
the epoch found is added to FILE.jsonl. Where that is there, the soak goes on with the next epoch, until all of its
epochs took so many hours.
An interrupt, or SIGTERM, ends the soak when the current epoch was judged; a second one ends it at once.
The exit code is 1 if a figure is not 0, if `tailer verify` finds a difference, or if something was not delivered; then
the folder of the epoch is kept.
"""

import argparse
import shutil
import signal
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from types import FrameType

from tests.soak.epoch import Epoch, Plan
from tests.soak.journal import Journal, JournalError
from tests.soak.report import Outcome, Report


def main() -> None:
    """Exit with 1 if something is violated."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--hours", type=float, help="begin epochs until all took so long")
    length.add_argument("--epochs", type=int, help="run so many epochs")
    parser.add_argument("--seed", type=int, help="of the first epoch; by default the time")
    parser.add_argument("--out", type=Path, help="the file for the table; FILE.jsonl gets what each epoch found")
    given = parser.parse_args()
    stopping = Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()
        print("ending after this epoch was judged; interrupt again to end at once", flush=True)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    commit = commit_of_tree()
    try:
        journal = None if given.out is None else Journal(given.out.with_name(f"{given.out.name}.jsonl"), commit)
    except JournalError as error:
        parser.error(str(error))
    report = Report(commit, [] if journal is None else journal.outcomes)
    seed = int(time.time()) if given.seed is None else given.seed
    if report.outcomes:
        first = report.outcomes[0].seed
        if given.seed not in (None, first):
            parser.error(f"--seed: the soak in {given.out} began with {first}; name another file to begin a new one")
        seed = first
    print(f"seed {seed}, {len(report.outcomes)} epochs are there", flush=True)
    try:
        while not (stopping.is_set() or report.has_reached(given.hours, given.epochs)):
            outcome = soak(Plan(seed + len(report.outcomes)), stopping)
            report.outcomes.append(outcome)
            if journal is not None:
                journal.append(outcome)
                given.out.write_text(f"{report}\n")
    finally:
        print(report)
    if not report.is_clean:
        raise SystemExit(1)


def soak(plan: Plan, stopping: Event) -> Outcome:
    """Run an epoch in a folder of its own, which is kept only if something is violated."""
    folder = Path(tempfile.mkdtemp(prefix="lake-tailer-soak-"))
    began, began_s = datetime.now(UTC), time.monotonic()
    try:
        outcome = Epoch(plan, folder, stopping).run()
    except BaseException:
        shutil.rmtree(folder)
        raise
    outcome.began = f"{began:%Y-%m-%d %H:%M} UTC"
    outcome.hours = (time.monotonic() - began_s) / 3600
    print(outcome, flush=True)
    if outcome.violations:
        print(f"  kept: {folder}; to repeat: python -m tests.soak --epochs 1 --seed {plan.seed}", flush=True)
    else:
        shutil.rmtree(folder)
    return outcome


def commit_of_tree() -> str:
    """Return the commit of the tree, with a mark if files differ from it."""
    root = Path(__file__).parents[2]
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not in a repository"


if __name__ == "__main__":
    main()
