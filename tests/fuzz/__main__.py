"""`python -m tests.fuzz TARGET`: search for inputs that break a parser, guided by coverage.

The search runs in a process of its own, in the environment `.venv/fuzz` (`make fuzz`), with limits of memory and time.
An input that fails is kept in `found/TARGET`; `--replay FILE` runs it without atheris. What reached new lines goes into
`corpus/TARGET`, without what adds nothing. `--measure` prints a line of the table in tests/fuzz/README.md.
"""

import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.fuzz.lines import Lines, all_lines, minimise, reached
from tests.fuzz.target import NAMES, Target, corpus_of, find, found_of

_PYTHON: Final = Path(__file__).parents[2] / ".venv/fuzz/bin/python"
_MEMORY_MB: Final = 2500
_LONGEST_BYTES: Final = 8192
_SMALL_BYTES: Final = 16_384  # of an input in the corpus
_RUNS: Final = re.compile(r"Done (\d+) runs|^#(\d+)\s", re.MULTILINE)


def _inputs(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*"))]


def _reach(target: Target, data: bytes) -> Lines:
    return reached(lambda: target.run(data), target.modules)


def _search(name: str, runs: int, seconds: int) -> int:
    """Run atheris over the corpus; keep what it found. Return its exit code."""
    target, corpus, found = find(name), corpus_of(name), found_of(name)
    found.mkdir(parents=True, exist_ok=True)
    before = set(found.iterdir())
    with TemporaryDirectory() as folder:
        for data in {*_inputs(corpus), *target.seeds()}:
            (Path(folder) / sha256(data).hexdigest()).write_bytes(data)
        limits = (
            f"-runs={runs}", f"-max_total_time={seconds}", f"-timeout={target.seconds}", f"-rss_limit_mb={_MEMORY_MB}",
            f"-max_len={_LONGEST_BYTES}", f"-artifact_prefix={found}/", "-print_final_stats=1", "-verbosity=1",
        )  # fmt: skip
        command = [str(_PYTHON), "-m", "tests.fuzz.instrumented", name, folder, *limits]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        grown = _inputs(Path(folder))
    counts = [int(first or second) for first, second in _RUNS.findall(done.stderr)]
    print(f"{name}: {max(counts, default=0)} inputs, {len(grown)} in the work corpus, exit code {done.returncode}")
    if done.returncode:
        print(done.stderr[-3000:])
    for path in sorted(set(found.iterdir()) - before):
        print(f"replay it: python -m tests.fuzz {name} --replay {path}")
    _keep(name, target, grown)
    return done.returncode


def _keep(name: str, target: Target, inputs: list[bytes]) -> None:
    """Write the inputs to the corpus that add lines to it; those that fail are in `found`."""
    corpus = corpus_of(name)
    corpus.mkdir(parents=True, exist_ok=True)
    passing = [data for data in inputs if len(data) <= _SMALL_BYTES and _passes(target, data)]
    kept = minimise(passing, lambda data: _reach(target, data))
    for path in corpus.iterdir():
        path.unlink()
    for data in kept:
        (corpus / sha256(data).hexdigest()[:16]).write_bytes(data)


def _passes(target: Target, data: bytes) -> bool:
    try:
        target.run(data)
    except Exception:  # noqa: BLE001 - any error is a fault, and reported by the search
        return False
    return True


def _measure(name: str) -> Iterator[str]:
    target, inputs = find(name), _inputs(corpus_of(name))
    edges = frozenset().union(*(_reach(target, data) for data in inputs))
    lines, whole = len({(file, line) for file, _, line in edges}), all_lines(target.modules)
    size = sum(map(len, inputs)) / 1024
    share = 100 * lines // whole
    yield f"| `{name}` | {len(inputs)}, {size:.0f} KB | {lines} of {whole} ({share} %) | {len(edges)} |"


def main() -> int:
    """Run what the command line asks for."""
    parser = ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=NAMES)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=0, help="0: until all runs are done")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--measure", action="store_true")
    given = parser.parse_args()
    if given.replay:
        for path in given.replay:
            find(given.target).run(path.read_bytes())
        return 0
    if given.measure:
        print(*_measure(given.target), sep="\n")
        return 0
    return _search(given.target, given.runs, given.seconds)


if __name__ == "__main__":
    sys.exit(main())
