"""Secrets: given as they are, in a file, or by a command.

A secret that is the option `password` may also be in `password_file`, or be what the command `password_command` prints.
The command is run without a shell. What it prints is in no message, and neither are its arguments.
"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tailer.errors import ConfigError
from tailer.stores.secrets.command import NoSecret, printed_by

__all__ = ["KEPT_S", "KeptSecret", "Secret", "secret_faults"]

KEPT_S: Final = 3600.0  # for which what a command printed is used, unless it is refused


@dataclass(frozen=True, slots=True)
class Secret:
    """The place of a secret: it is `value`, or in the file `file`, or what `command` prints; or there is none."""

    value: str | None = field(default=None, repr=False)
    file: str | None = None
    command: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, options: Any, option: str, value: str | None) -> Self:
        """Return the secret that has `value`, or else what the others with the suffixes `_file` and `_command` say."""
        return cls(value, getattr(options, f"{option}_file"), tuple(getattr(options, f"{option}_command")))

    @property
    def may_change(self) -> bool:
        """Return whether it may be another one when it is read again."""
        return self.file is not None or bool(self.command)

    @property
    def place(self) -> str:
        """The file, or the command without its arguments."""
        return f"the command {self.command[0]}" if self.command else str(self.file)

    def remedy(self, option: str) -> str:
        """Return how to correct the secret, which is that of `option`."""
        if self.command:
            return f"Correct what {option}_command prints ({self.command[0]}); it runs again for each attempt."
        if self.file is not None:
            return f"Correct {option}_file ({self.file}); it is read again for each attempt."
        if self.value:
            return f"Correct {option}; where it is in the environment, restart the daemon."
        return f"Give {option} in the environment, or {option}_file, or {option}_command."

    def read(self) -> str | None:
        """Return the secret, without the end of its last line; None: none is given. Blocks. Raises `NoSecret`."""
        if self.command:
            return printed_by(self.command).rstrip("\r\n")
        if self.file is None:
            return self.value
        try:
            return Path(self.file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeError) as error:
            reason = f"{self.file} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}"
            raise NoSecret(reason, "Put the secret there, readable for this process only.") from None


class KeptSecret:
    """A secret that each request needs: a file is read for each, and a command runs once in `KEPT_S`."""

    def __init__(self, secret: Secret) -> None:
        self._secret: Final = secret
        self._last: str | None = None
        self._until_s = -math.inf

    def read(self) -> str | None:
        """See `Secret.read`."""
        now_s = time.monotonic()
        if not self._secret.command or now_s >= self._until_s:
            self._last, self._until_s = self._secret.read(), now_s + KEPT_S
        return self._last

    def forget(self) -> None:
        """Let the next `read` run the command again: what it printed was refused."""
        self._until_s = -math.inf


def secret_faults(name: str, options: Any, secrets: Mapping[str, object]) -> Iterator[ConfigError]:
    """Yield the faults of `name` with secrets that are given twice.

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
