"""Secrets of sinks: given as they are, in a file, or by a command.

A secret that is the option `password` may also be in `password_file`, or be what the command `password_command` prints.
Both are read when a login needs it, so it may be renewed. The command is run without a shell. What it prints is in no
message, and neither are its arguments.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from tailer.errors import ConfigError, SinkRejected, SinkUnavailable

__all__ = ["read_secret", "secret_faults"]

_END_S: Final = 1.0  # for the end of a killed command
_LIMIT_S: Final = 30.0
_LARGEST: Final = 64 * 2**10


def secret_faults(name: str, options: Any, secrets: Mapping[str, object]) -> Iterator[ConfigError]:
    """Yield the faults of the sink called `name` with secrets that are given twice.

    `secrets`: what is given by each option that has others with the suffixes `_file` and `_command` in `options`.
    """
    for option, value in secrets.items():
        file, command = getattr(options, f"{option}_file"), getattr(options, f"{option}_command")
        if value and file is not None:
            yield ConfigError(f"{name}.{option}_file", "is given beside the secret itself", "Give one of them.")
        elif command and (value or file is not None):
            yield ConfigError(f"{name}.{option}_command", "is not the only one with this secret", "Give one of them.")
        if command and not command[0]:
            remedy = 'Give a program and its arguments, such as ["pass", "show", "kafka"].'
            yield ConfigError(f"{name}.{option}_command", "names no program", remedy)


def read_secret(name: str, value: str | None, file: str | None, command: Sequence[str]) -> str | None:
    """Return a secret of the sink called `name`, without the end of its last line; None: none is given. Blocks.

    Raises `SinkRejected` for a file or a command that cannot be used, `SinkUnavailable` for a command that fails.
    """
    if command:
        return _printed_by(name, command).rstrip("\r\n")
    if file is None:
        return value
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        reason = f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}"
        raise SinkRejected(name, reason, "Put the secret there, readable for this process only.") from None


def _printed_by(name: str, command: Sequence[str]) -> str:
    program = command[0]
    remedy = "It must print the secret alone, as text. Run it by hand, as the user of this process."
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "an argument has a null byte"
        raise SinkRejected(name, f"the command {program} cannot be run: {reason}", remedy) from None
    assert process.stdout is not None
    deadline_s = time.monotonic() + _LIMIT_S
    try:
        printed = _read(process.stdout, deadline_s)
        code = process.wait(max(deadline_s - time.monotonic(), 0.0)) if len(printed) <= _LARGEST else 0
    except (TimeoutError, subprocess.TimeoutExpired):
        raise SinkUnavailable(name, f"the command {program} did not end within {_LIMIT_S:g} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):  # what it has started, too; another user's goes on
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    if code != 0:
        raise SinkUnavailable(name, f"the command {program} ended with exit code {code}")
    if not printed.strip() or len(printed) > _LARGEST:
        what = f"more than {_LARGEST} bytes" if printed.strip() else "nothing"
        raise SinkRejected(name, f"the command {program} printed {what}", remedy)
    try:
        return printed.decode("utf-8")
    except UnicodeError:
        raise SinkRejected(name, f"the command {program} printed what is not UTF-8", remedy) from None


def _read(stream: IO[bytes], deadline_s: float) -> bytes:
    """Read up to the end, or a little more than `_LARGEST` bytes. Raises `TimeoutError`."""
    found = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while len(found) <= _LARGEST:
            if not selector.select(max(deadline_s - time.monotonic(), 0.0)):
                raise TimeoutError
            more = os.read(stream.fileno(), _LARGEST)
            if not more:
                break
            found += more
    return found
