"""The command `tailer`, whose commits wait while there is a file `linger` beside the configuration."""

import sys
import time
from pathlib import Path
from typing import Any

from tailer.__main__ import main
from tailer_sinks.kafka.clients import confluent_producer, python_producer

LINGER_S = 1.0
LINGERS = "lingering before a commit"

_check_delivered = confluent_producer.ConfluentProducer._check_delivered
_begin_end = python_producer._Client.begin_end


def _linger() -> None:
    if Path(sys.argv[-1]).with_name("linger").exists():
        print(LINGERS, file=sys.stderr, flush=True)
        time.sleep(LINGER_S)


def _check_and_linger(producer: confluent_producer.ConfluentProducer) -> None:
    _check_delivered(producer)
    _linger()


def _linger_and_end(client: python_producer._Client, *, commit: bool) -> Any:
    if commit:
        _linger()
    return _begin_end(client, commit=commit)


if __name__ == "__main__":
    confluent_producer.ConfluentProducer._check_delivered = _check_and_linger  # type: ignore[method-assign, assignment]
    python_producer._Client.begin_end = _linger_and_end  # type: ignore[method-assign, assignment]
    main()
