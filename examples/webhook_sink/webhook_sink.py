"""A sink of your own: POST the changes to a web service, as JSON Lines.

    pip install . pytest
    pytest                     # test_webhook_sink.py: the contract of a sink
    tailer run tailer.toml     # after pip install .

A web service has no transactions, so this is an `AtLeastOnceSink`: after a failure the service gets some rows again,
and lake-tailer keeps the progress in the `state_table`. The service knows a repeated change by its version and key.
"""

import urllib.request
from collections.abc import Mapping
from typing import Any, Self
from urllib.error import HTTPError

from anyio import to_thread

from tailer.errors import ConfigError, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, ControlEvent
from tailer.sink import AtLeastOnceSink
from tailer_sinks.encoding.events import event_line
from tailer_sinks.encoding.flat import FlatEncoder, slices


class WebhookSink(AtLeastOnceSink):
    """Sends rows when they come, and events (a change of the columns, a gap) in their place between them."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self._url = url

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Check the only option, `url`; no I/O."""
        if set(options) != {"url"} or not str(options["url"]).startswith(("http://", "https://")):
            raise ConfigError(f"{name}.url", "is not the only option, or no address", 'Give url = "https://...".')
        return cls(name, options["url"])

    async def write(self, batch: ChangeBatch) -> None:
        """Send rows; a large batch in several requests."""
        encoder = FlatEncoder(self.name, batch.rows.schema)
        for rows in slices(batch.rows):
            await to_thread.run_sync(self._post, bytes(encoder.lines(rows)))

    async def announce(self, event: ControlEvent) -> None:
        """Send an event."""
        await to_thread.run_sync(self._post, event_line(event))

    async def flush(self) -> None:
        """Do nothing: every request was answered before the next."""

    async def aclose(self) -> None:
        """Do nothing: no connection is kept."""

    def _post(self, body: bytes) -> None:
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/x-ndjson"})
        try:
            urllib.request.urlopen(request, timeout=30).close()
        except HTTPError as error:
            reason = f"{self._url} answers {error.code}"
            if error.code < 500 and error.code not in (408, 429):  # the service would refuse it again
                raise SinkRejected(self.name, reason, "Check the service's log.") from error
            raise SinkUnavailable(self.name, reason) from error
        except OSError as error:
            raise SinkUnavailable(self.name, f"{self._url}: {error}") from error
