"""Processes of `tailer` that start at once: forked from one that has imported it, which takes most of a second.

`run` starts the server, one for each run of pytest. A forked process has arguments, environment, folder, output and end
of its own, like one that a user starts.
"""

import atexit
import importlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Timer
from typing import Any, Final, NoReturn

__all__ = ["run"]

_ONE_AT_A_TIME: Final = Lock()
# By nearly every verb.
_IMPORTED: Final = ("pyarrow.parquet", "tailer.changelog.carryovers", "tailer.cli.tail", "tailer.formats.delta.table")


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
        start_new_session=True,  # an interrupt from the keyboard goes to the tests only, which then end it
    )
    atexit.register(server.wait)
    assert server.stdin is not None
    atexit.register(server.stdin.close)
    return server


def run(
    arguments: list[str], cwd: Path | None, environment: dict[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `tailer` to its end. It is killed after `timeout_s` seconds, and then its exit code is -9."""
    with _ONE_AT_A_TIME, TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        order = [arguments, str(cwd or Path.cwd()), environment, list(map(str, outputs))]
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        pid = int(server.stdout.readline())
        patience = Timer(timeout_s, os.kill, (pid, 9))
        patience.start()
        code = int(server.stdout.readline())
        patience.cancel()
        return subprocess.CompletedProcess(arguments, code, *(path.read_text() for path in outputs))


def _become(arguments: list[str], cwd: str, environment: dict[str, str], outputs: list[str]) -> NoReturn:
    """Run `tailer` in this process, and end it."""
    from tailer.__main__ import main  # noqa: PLC0415 - the server alone needs it

    code: Any = 70
    try:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(outputs, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8") for number in (1, 2))  # noqa: PTH123, SIM115
        sys.argv = ["tailer", *arguments]
        main()
    except SystemExit as end:
        code = end.code
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)


def _serve() -> None:
    for module in _IMPORTED:
        importlib.import_module(module)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _become(*json.loads(line))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
