"""The process of a search: `python -m tests.fuzz.instrumented TARGET FOLDER LIMITS...`, with atheris."""

import sys

import atheris

with atheris.instrument_imports(include=["tailer"], enable_loader_override=False):
    from tests.fuzz.target import find

    _RUN = find(sys.argv[1]).run


def _one(data: bytes) -> None:
    _RUN(data)


if __name__ == "__main__":
    atheris.Setup([sys.argv[0], *sys.argv[2:]], _one)
    atheris.Fuzz()
