"""Mutation check: faults planted in the product, one at a time, each of which what CI runs must find.

    python -m tests.mutants.run [NAME ...] [--skip-clean] [--old REF]

`mutants.toml` lists the faults. Each is one small change of text, of the kind that a developer might make, with the
tests that are expected to find it. A mutant is planted in a copy of the working tree, where its tests run in the tiers
of `make test-all`, without `make nightly`; the first failure ends them. Before that, the tests must pass without it.

`--old REF` does the same with all of the tree at the git revision `REF`: what another suite finds, and another product.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from tests.tiers import TIERS

__all__ = ["IN_CI", "MUTANTS", "ROOT", "Copy", "Mutant", "copied"]

ROOT: Final = Path(__file__).resolve().parents[2]
IN_CI: Final = tuple(word for tier in TIERS for word in ("--tier", tier))
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) ([^\[\s]+)(.* Timeout .*)?", re.MULTILINE)
_CAME_FROM: Final = "import tailer, tailer_sinks; print(tailer.__file__, tailer_sinks.__file__)"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault: `new` in place of `old`, which is in `file` once. `tests`: those expected to find it."""

    name: str
    kind: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _read() -> Iterator[Mutant]:
    for each in tomllib.loads((Path(__file__).parent / "mutants.toml").read_text())["mutant"]:
        yield Mutant(each["name"], each["kind"], each["file"], each["old"], each["new"], tuple(each["tests"]))


MUTANTS: Final = tuple(_read())


class Copy:
    """A copy of the tree in `folder`, whose tests and subprocesses import the copy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Before what is installed, which is the working tree. Golden tables are found beside that.
        golden = os.environ.get("LAKE_TAILER_GOLDEN", str(ROOT.parent / "shared" / "golden"))
        path = os.pathsep.join((str(folder), str(folder / "sinks")))
        self._environ = os.environ | {"PYTHONPATH": path, "LAKE_TAILER_GOLDEN": golden}
        found = self.run("-c", _CAME_FROM).stdout.split()
        if not all(Path(path).is_relative_to(folder) for path in found):
            raise SystemExit(f"not the copy in {folder} is imported, but {' and '.join(found)}")

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[bool]:
        """Change the copy; give False if it does not have the text exactly once."""
        path = self._folder / mutant.file
        before = path.read_text() if path.exists() else ""
        if before.count(mutant.old) != 1:
            yield False
            return
        try:
            self._write(path, before.replace(mutant.old, mutant.new))
            yield True
        finally:
            self._write(path, before)

    def test(self, tests: Sequence[str]) -> tuple[int, str]:
        """Run tests up to the first that fails. Return pytest's exit code, and that test, or else the last lines."""
        done = self.run("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--color=no", *IN_CI, *tests)
        failed = _FAILED.search(done.stdout)
        if failed is None:
            return done.returncode, "\n".join(done.stdout.splitlines()[-8:])
        return done.returncode, failed[1] + " (timeout)" * (failed[2] is not None)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text)
        Path(cache_from_source(str(path))).unlink(missing_ok=True)  # it may be of the same size and second

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run Python in the copy."""
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self._folder, env=self._environ, text=True, capture_output=True, check=False)


@contextmanager
def copied(revision: str | None) -> Iterator[Copy]:
    """Copy the tree: as it is, or at a git revision."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name).resolve() / "tree"
        folder.mkdir()
        listing = "git archive " + revision if revision else "git ls-files -coz --exclude-standard | tar c --null -T -"
        command = f"set -o pipefail; {listing} | tar x -C {folder}"
        subprocess.run(["bash", "-c", command], cwd=ROOT, check=True)
        (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
        yield Copy(folder)


def _found(copy: Copy, mutant: Mutant) -> bool:
    """Print the row of a mutant; return whether a test found it."""
    began = time.monotonic()
    with copy.planted(mutant) as planted:
        code, said = copy.test(mutant.tests) if planted else (-1, f"{mutant.file} has another text")
    verdict = said if code == 1 else f"NOT FOUND: {said}" if code == 0 else f"NOT TRIED: {said}"
    print(f"{mutant.name} | {mutant.kind} | {verdict} | {time.monotonic() - began:.0f}", flush=True)
    return code == 1


def main() -> None:
    """Try the mutants with these names, or all. Exit with 1 if one is not found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="words of a mutant's name; by default all are tried")
    parser.add_argument("--skip-clean", action="store_true", help="do not run the tests without a mutant first")
    parser.add_argument("--old", metavar="REF", help="try them with the tree at this git revision")
    given = parser.parse_args()
    mutants = [each for each in MUTANTS if not given.names or any(name in each.name for name in given.names)]
    if not mutants:
        parser.error("no mutant has such a name")
    with copied(given.old) as copy:
        if not given.skip_clean:
            code, said = copy.test(sorted({test for mutant in mutants for test in mutant.tests}))
            if code != 0:
                raise SystemExit(f"without a mutant: {said}")
        print("mutant | kind | found by | seconds", flush=True)
        left = [mutant.name for mutant in mutants if not _found(copy, mutant)]
    if left:
        raise SystemExit(f"{len(left)} of {len(mutants)} are not found: {', '.join(left)}")


if __name__ == "__main__":
    main()
