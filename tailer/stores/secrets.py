"""Secrets: given as they are, in a file, by a command, or in a variable of the environment.

A configuration gives the secret `password` as a text, or as a table with its place: `{file = "..."}`,
`{command = ["..."]}` or `{env = "..."}`. A command is run without a shell or input, within bounds. What it prints is in
no message, and neither are its arguments.
"""

import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

__all__ = ["KEPT_S", "WAYS", "KeptSecret", "NoSecret", "Secret"]

KEPT_S: Final = 3600.0  # for which what a command printed is used, unless it is refused
# The keys of a table that gives a secret, with an example of each.
WAYS: Final[Mapping[str, str]] = {"file": '"..."', "command": '["..."]', "env": '"..."'}
_END_S: Final = 1.0  # for the end of a killed command
_LIMIT_S: Final = 30.0
_LOOK_S: Final = 0.02  # between two looks at whether a command has ended, if something else keeps its output open
_LARGEST: Final = 64 * 2**10


class NoSecret(Exception):
    """There is no secret where it should be: `reason`, and the next step; `remedy` None: it may be there later."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason: Final = reason
        self.remedy: Final = remedy


def _printed_by(command: Sequence[str]) -> str:
    """Run a program with its arguments, and return what it prints. Blocks. Raises `NoSecret`."""
    place = f"the command {command[0]}"
    remedy = "It must print the secret alone, as text. Run it by hand, as the user of this process."
    none, (ours, theirs) = subprocess.DEVNULL, os.pipe()
    try:
        process = subprocess.Popen(command, stdin=none, stdout=theirs, stderr=none, start_new_session=True)
    except (OSError, ValueError) as error:
        os.close(ours)
        reason = getattr(error, "strerror", None) or "an argument has a null byte"
        raise NoSecret(f"{place} cannot be run: {reason}", remedy) from None
    finally:
        os.close(theirs)
    deadline_s = time.monotonic() + _LIMIT_S
    try:
        printed = _read(process, ours, deadline_s)
        code = process.wait(max(deadline_s - time.monotonic(), 0.0)) if len(printed) <= _LARGEST else 0
    except (TimeoutError, subprocess.TimeoutExpired):
        raise NoSecret(f"{place} did not end within {_LIMIT_S:g} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):  # what it has started, too; another user's goes on
            os.killpg(process.pid, signal.SIGKILL)
        os.close(ours)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    if code != 0:
        raise NoSecret(f"{place} ended with exit code {code}")
    if not printed.strip() or len(printed) > _LARGEST:
        what = f"more than {_LARGEST} bytes" if printed.strip() else "nothing"
        raise NoSecret(f"{place} printed {what}", remedy)
    try:
        return printed.decode("utf-8")
    except UnicodeError:
        raise NoSecret(f"{place} printed what is not UTF-8", remedy) from None


def _read(process: "subprocess.Popen[bytes]", output: int, deadline_s: float) -> bytes:
    """Read what a process prints into the pipe `output` up to its end, or a little more than `_LARGEST` bytes.

    What it has started may keep the pipe open beyond that. Raises `TimeoutError`.
    """
    printed = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while len(printed) <= _LARGEST:
            has_ended = process.poll() is not None  # then all that it has printed is there
            rest_s = deadline_s - time.monotonic()
            if not has_ended and rest_s <= 0:
                raise TimeoutError
            if selector.select(0 if has_ended else min(_LOOK_S, rest_s)):
                more = os.read(output, _LARGEST + 1)
                printed += more
                if not more:
                    break
            if has_ended:
                break
    return printed


class Secret:
    """The place of a secret: it is `value`, in the file `file`, what `command` prints, or in the variable `env`.

    At most one of them is given. In a struct of options, a field of this type takes what `of` takes.
    """

    __slots__ = ("command", "env", "file", "value")

    def __init__(
        self, value: str | None = None, *, file: str | None = None, command: Sequence[str] = (), env: str | None = None
    ) -> None:
        self.value: Final = value
        self.file: Final = file
        self.command: Final = tuple(command)
        self.env: Final = env

    @classmethod
    def of(cls, given: object) -> Self:
        """Return the secret that a configuration gives: a text, or a table with one place. Raises `ValueError`."""
        match given:
            case str():
                return cls(given)
            case {"file": str(file), **others} if file and not others:
                return cls(file=file)
            case {"env": str(env), **others} if env and not others:
                return cls(env=env)
            case {"command": [str(program), *_] as command, **others} if program and not others:
                if all(isinstance(part, str) for part in command):
                    return cls(command=command)
        raise ValueError("not a secret")

    def __eq__(self, other: object) -> bool:
        """Return whether the other is at the same place."""
        return isinstance(other, Secret) and self._place() == other._place()

    def __hash__(self) -> int:
        return hash(self._place())

    def __repr__(self) -> str:
        """Return a text without the secret, and without the arguments of a command."""
        return f"Secret({self.place if self.value is None else '...'})"

    @property
    def is_given(self) -> bool:
        """Return whether there is a secret; an empty text is none."""
        return any(self._place())

    @property
    def may_change(self) -> bool:
        """Return whether it may be another one when it is read again."""
        return self.file is not None or bool(self.command)

    @property
    def place(self) -> str:
        """The file, the variable, or the command without its arguments."""
        if self.command:
            return f"the command {self.command[0]}"
        return f"the variable {self.env}" if self.env is not None else str(self.file)

    def remedy(self, option: str) -> str:
        """Return how to correct the secret, which is that of `option`."""
        if self.command:
            return f"Correct what the command of {option} prints ({self.command[0]}); it runs again for each attempt."
        if self.file is not None:
            return f"Correct the file of {option} ({self.file}); it is read again for each attempt."
        if self.env is not None:
            return f"Correct the variable of {option} ({self.env}), and restart the daemon."
        if self.value:
            return f"Correct {option}; where it is in the environment, restart the daemon."
        return f"Give {option} in the environment, or by a file or a command (docs/secrets.md)."

    def read(self) -> str | None:
        """Return the secret, without the end of its last line; None: none is given. Blocks. Raises `NoSecret`."""
        if self.command:
            return _printed_by(self.command).rstrip("\r\n")
        if self.file is None and self.env is None:
            return self.value
        try:
            secret = os.environb[os.fsencode(self.env)] if self.env is not None else Path(str(self.file)).read_bytes()
            return secret.decode().rstrip("\r\n")
        except KeyError:
            raise NoSecret(f"{self.place} is not set", "Set it where this process is started.") from None
        except (OSError, ValueError) as error:
            reason = f"{self.place} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}"
            raise NoSecret(reason, "Put the secret there, readable for this process only.") from None

    def _place(self) -> tuple[object, ...]:
        return self.value, self.file, self.command, self.env


class KeptSecret:
    """A secret that each request needs: a file is read for each, and a command runs once in `KEPT_S`."""

    def __init__(self, secret: Secret) -> None:
        self._secret: Final = secret
        self._last: str | None = None
        self._until_s = -math.inf

    def read(self) -> str | None:
        """Return the secret as `Secret.read` does, or what the command printed last."""
        now_s = time.monotonic()
        if not self._secret.command or now_s >= self._until_s:
            self._last, self._until_s = self._secret.read(), now_s + KEPT_S
        return self._last

    def forget(self) -> None:
        """Let the next `read` run the command again: what it printed was refused."""
        self._until_s = -math.inf
