"""One Spark session for all pipelines of a process, started on first use and again after it was lost."""

import logging
from threading import Lock

from pyspark.sql import SparkSession

from tailer.config.shapes import SparkSettings
from tailer.spark.engine.executors import Executors
from tailer.spark.session import close_session, engine_name, is_alive, open_session

__all__ = ["SharedSpark"]

_log = logging.getLogger(__name__)


class SharedSpark:
    """A session with `settings`, and its executors. Methods block; several threads may call them."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._turn = Lock()
        self._session: SparkSession | None = None
        self._executors: Executors | None = None

    def session(self) -> SparkSession:
        """Return the session when Spark is up. Raises `ConfigError` and `EngineUnavailable`."""
        with self._turn:
            if self._session is not None and not is_alive(self._session):
                self._close()
            if self._session is None:
                self._session = open_session(self._settings)
                _log.info("%s is up", engine_name(self._session))
            return self._session

    def executors(self) -> Executors:
        """Return the session's executors. Blocks and raises as `session` does."""
        session = self.session()
        with self._turn:
            if self._executors is None:
                self._executors = Executors(session)
            return self._executors

    def close(self) -> None:
        """Stop everything that was started."""
        with self._turn:
            self._close()

    def _close(self) -> None:
        session, executors = self._session, self._executors
        self._session = self._executors = None
        if executors is not None:
            executors.close()
        if session is not None:
            close_session(session)
