"""The table of the Kafka benchmark: a shop's orders with a change feed, mostly appends and a few updates.

Twelve columns of the usual kinds; with the feed's own three, a row is about 350 bytes of JSON.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

__all__ = ["APPENDED", "KEY", "UPDATES_EVERY", "write_orders"]

APPENDED: Final = 100_000  # rows per version
UPDATES_EVERY: Final = 6  # appends
KEY: Final = "id"

_UPDATED: Final = 20  # one in so many rows of an append
_FEED: Final = {"delta.enableChangeDataFeed": "true"}
_FIRST_US: Final = 1_760_000_000_000_000
_CITIES: Final = pa.array(["Amsterdam", "Kraków", "San José", "São Paulo", "Москва", "New York", "東京", "Oslo"])


def write_orders(path: Path, appends: int) -> int:
    """Write the table; return the number of rows in its change feed."""
    rows = 0
    for number in range(appends):
        write_deltalake(path, _orders(number * APPENDED), mode="append", configuration=_FEED)
        rows += APPENDED
        if (number + 1) % UPDATES_EVERY == 0:
            rows += 2 * _update(path, number * APPENDED)
    return rows


def _update(path: Path, first: int) -> int:
    """Update some rows of the append that begins with the id `first`."""
    where = f"id >= {first} AND id < {first + APPENDED} AND id % {_UPDATED} = 0"
    found = DeltaTable(path).update({"quantity": "quantity + 1", "paid": "NOT paid"}, predicate=where)
    return int(found["num_updated_rows"])


def _orders(first: int) -> pa.Table:
    ids = pa.array(range(first, first + APPENDED), pa.int64())
    return pa.table(dict(_columns(ids)))


def _columns(ids: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    microseconds = pc.add(pc.multiply(ids, 1_000_007), _FIRST_US)
    yield "id", ids
    yield "account", pc.multiply(_remainder(ids, 50_000), 7919)
    yield "quantity", _remainder(ids, 40).cast(pa.int32())
    yield "customer", _joined("customer", _remainder(ids, 5000))
    yield "city", _CITIES.take(_remainder(ids, len(_CITIES)))
    yield "article", _joined("article no.", _remainder(pc.multiply(ids, 31), 9000))
    yield "price", _remainder(pc.multiply(ids, 13), 100_000).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2))
    yield "share", pc.divide(ids.cast(pa.float64()), 7.0)
    yield "weight", pc.divide(_remainder(ids, 4000).cast(pa.float64()), 8.0)
    yield "at", microseconds.cast(pa.timestamp("us", tz="UTC"))
    yield "day", _remainder(ids, 3650).cast(pa.int32()).cast(pa.date32())
    yield "paid", pc.equal(_remainder(ids, 2), 0)


def _joined(word: str, numbers: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(word, numbers.cast(pa.string()), " ")


def _remainder(values: pa.Array, divisor: int) -> pa.Array:
    return pc.subtract(values, pc.multiply(pc.divide(values, divisor), divisor))
