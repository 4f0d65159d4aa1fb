"""Dead letters: files of JSON Lines with the events that the endpoint refused.

The events of one request are in one file, `<folder>/<pipeline>/<table id>/<webhook-id of the request>.jsonl`, which is
whole or absent. If the request is sent and refused again, the file is replaced by the same one.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tailer.errors import SinkUnavailable
from tailer_sinks.files.names import directory_name
from tailer_sinks.http.requests import Events

__all__ = ["DeadLetter", "DeadLetters"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Events that the endpoint refused one by one, and why."""

    events: Events
    reason: str


class DeadLetters:
    """The folder with the dead letters of the sink called `name`."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder.joinpath(*map(directory_name, name.split("/")))

    def write(self, request_id: str, letters: Sequence[DeadLetter]) -> Path:
        """Store the refused events of a request durably. Blocks. Raises `SinkUnavailable`."""
        folder = self._folder / directory_name(letters[0].events.table_id)
        file, draft = folder / f"{request_id}.jsonl", folder / f".{request_id}.draft"
        lines = b"".join(
            b'{"reason":%b,"request":%b,"event":%b}\n' % (_text(letter.reason), _text(request_id), event)
            for letter in letters
            for event in letter.events.texts
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as stream:
                stream.write(lines)
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(file)
            _sync_folder(folder)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise SinkUnavailable(self._name, f"dead letters in {folder}: {error.strerror}") from error
        return file


def _text(value: str) -> bytes:
    return json.dumps(value).encode()


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
