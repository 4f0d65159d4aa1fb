"""The status page: one HTML document that asks `/status` and `/history`, and needs nothing from any other machine."""

from tailer.daemon.page.history import History
from tailer.daemon.page.routes import history_route, page_routes

__all__ = ["History", "history_route", "page_routes"]
