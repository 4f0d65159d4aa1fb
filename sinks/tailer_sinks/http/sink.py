"""The `http` sink. The package's docstring says what it promises.

Dead letters are files of JSON Lines with the events that the endpoint refused. The events of one request are in one
file, `<folder>/<pipeline>/<table id>/<webhook-id of the request>.jsonl`, which is whole or absent. If the request is
sent and refused again, the file is replaced by the same one.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
from anyio import CancelScope, to_thread
from typing_extensions import override

from tailer.errors import SinkError, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, ControlEvent
from tailer.sink import AtLeastOnceSink, refused
from tailer_sinks.encoding.values import JsonForms
from tailer_sinks.files.port import directory_name, sync_folder
from tailer_sinks.http.endpoint import Endpoint, status_text
from tailer_sinks.http.events import CloudEvents, EventEncoder, Events, FlatEvents, cut, request_of
from tailer_sinks.http.options import Options, read

__all__ = ["HttpSink"]


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
            sync_folder(folder)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise SinkUnavailable(self._name, f"dead letters in {folder}: {error.strerror}") from error
        return file


def _text(value: str) -> bytes:
    return json.dumps(value).encode()


_log = logging.getLogger(__name__)

TOO_LARGE: Final = 413
FEW_BYTES: Final = 2**18  # encoded in one step of a thread


class HttpSink(AtLeastOnceSink):
    """An `AtLeastOnceSink` that sends requests with rows to an endpoint, one after the other.

    `options`: as `tailer_sinks.http.options.read` returns them. Raises `ConfigError` for an address that the client
    refuses.
    """

    writes_together = True

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._options = options
        kind = FlatEvents if options.format == "json" else CloudEvents
        self._encoder: EventEncoder = kind(name, JsonForms(int64=options.int64))
        self._endpoint = Endpoint(name, options, self._encoder.content_type)
        folder = options.dead_letter_folder
        self._dead_letters = None if folder is None else DeadLetters(name, Path(folder))

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Read the options; no I/O. Raises `ConfigError`."""
        return cls(name, read(name, options))

    @override
    async def refusals(self, schema: pa.Schema) -> Sequence[SinkError]:
        """Return refusals: a column has no form in events, or nothing listens at the address."""
        return [*refused(self._encoder.encoder_of, schema), *await self._endpoint.refusals()]

    async def write(self, batch: ChangeBatch) -> None:
        """Send rows. Raises `SinkUnavailable` and `SinkRejected`."""
        await self.write_all([batch])

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        """Send rows as `write` does. If rows of one of several versions have no JSON form, none are sent."""
        encoded = self._encoder.encode(batches)
        several = batches[0].version != batches[-1].version
        if several or sum(batch.size_bytes for batch in batches) <= FEW_BYTES:
            for events in await to_thread.run_sync(list, encoded):
                await self._send_all(events)
            return
        try:
            while (events := await to_thread.run_sync(partial(next, encoded, None))) is not None:
                await self._send_all(events)
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(encoded.close)

    async def announce(self, event: ControlEvent) -> None:
        """Send an event in a request of its own. Raises as `write`."""
        await self.flush()
        await self._send(self._encoder.control(event))

    async def flush(self) -> None:
        """Send the rows that are held back; every other request was answered before the next. Raises as `write`."""
        if (held := await to_thread.run_sync(self._encoder.flush)) is not None:
            await self._send_all(held)

    @override
    def forget(self) -> None:
        self._encoder.forget()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._endpoint.aclose()

    async def _send_all(self, events: Events) -> None:
        for batch in cut(events, self._options.batch_rows, self._options.batch_bytes):
            await self._send(batch)

    async def _send(self, events: Events) -> None:
        """Send the events of one request, and store those that the endpoint refuses, if there is a folder for them."""
        letters = await self._refused(events)
        if letters and self._dead_letters is not None:
            file = await to_thread.run_sync(self._dead_letters.write, request_of(events).id, letters)
            number = sum(len(letter.events) for letter in letters)
            _log.warning("%s: %s refuses %d events; see %s", self.name, self._endpoint.origin, number, file)

    async def _refused(self, events: Events) -> list[DeadLetter]:
        """Send events, in halves where the endpoint refuses them. Return those that it refuses one by one.

        Raises `SinkRejected` for these if they have no folder; a request is then halved only if it is too large.
        """
        status = await self._endpoint.post(request_of(events))
        if status is None:
            return []
        if len(events) > 1 and (status == TOO_LARGE or self._dead_letters is not None):
            first, second = events.halves()
            return [*await self._refused(first), *await self._refused(second)]
        reason = f"{self._endpoint.origin} answers {status_text(status)}"
        if self._dead_letters is None:
            begin, end = (", ".join(map(str, place)) for place in (events.places[0], events.places[-1]))
            where = f"the event at {begin}" if len(events) == 1 else f"the events from {begin} to {end}"
            remedy = "See the log of the service; or let delivery go on without such events: dead_letter_folder."
            raise SinkRejected(self.name, f"{reason} to {where} (version, task, row)", remedy)
        return [DeadLetter(events, reason)]
