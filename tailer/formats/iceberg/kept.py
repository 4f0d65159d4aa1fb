"""Keeps what was read last, up to a weight. What is asked for again stays longest."""

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Kept"]

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Keeps values by key; `most`: their weight in all. The newest one stays, however heavy."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return a value; None: it is not there any more."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: K, value: V, weight: int = 1) -> V:
        self._weight += weight - (self._values.pop(key)[1] if key in self._values else 0)
        self._values[key] = value, weight
        while self._weight > self._most and len(self._values) > 1:
            self._weight -= self._values.popitem(last=False)[1][1]
        return value
