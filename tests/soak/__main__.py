"""Run the daemon with all sinks under load and faults for hours, and print one table.

    python -m tests.soak --hours 24 [--seed N] [--out FILE]
    python -m tests.soak --epochs 1 --seed N                 one epoch, such as one that found something

A soak is a row of epochs with the seeds N, N + 1 and so on. The table is written to FILE after each of them.
An interrupt, or SIGTERM, ends the soak when the current epoch was judged; a second one ends it at once.
The exit code is 1 if a figure is not 0, if `tailer verify` finds a difference, or if something was not delivered; then
the folder of the epoch is kept.
"""

import argparse
import shutil
import signal
import tempfile
import time
from pathlib import Path
from threading import Event
from types import FrameType

from tests.soak.epoch import Epoch, Plan
from tests.soak.memory import Memory
from tests.soak.report import Report


def main() -> None:
    """Exit with 1 if something is violated."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--hours", type=float, help="begin epochs for so long")
    length.add_argument("--epochs", type=int, help="run so many epochs")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first epoch; by default the time")
    parser.add_argument("--out", type=Path, help="the file for the table")
    given = parser.parse_args()
    stopping = Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()
        print("ending after this epoch was judged; interrupt again to end at once", flush=True)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    print(f"seed {given.seed}", flush=True)
    with Memory() as memory:
        report = Report(given.seed, memory)
        ends_s = time.monotonic() + 3600 * (given.hours or 0)
        try:
            while not stopping.is_set():
                soak(Plan(given.seed + len(report.outcomes)), report, memory, stopping)
                if given.out is not None:
                    given.out.write_text(f"{report}\n")
                if len(report.outcomes) == given.epochs or (given.hours is not None and time.monotonic() >= ends_s):
                    break
        finally:
            print(report)
    if not report.is_clean:
        raise SystemExit(1)


def soak(plan: Plan, report: Report, memory: Memory, stopping: Event) -> None:
    """Run an epoch in a folder of its own, which is kept only if something is violated."""
    folder = Path(tempfile.mkdtemp(prefix="lake-tailer-soak-"))
    try:
        outcome = Epoch(plan, folder, stopping, memory).run()
    except BaseException:
        shutil.rmtree(folder)
        raise
    report.outcomes.append(outcome)
    print(outcome, flush=True)
    if outcome.violations:
        print(f"  kept: {folder}; to repeat: python -m tests.soak --epochs 1 --seed {plan.seed}", flush=True)
    else:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
