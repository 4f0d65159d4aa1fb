"""The mapping of change rows to Debezium's messages, by row numbers, on whole columns.

==========================  ==========================================================================================
insert                      `c`, or `r` if the rows are of a snapshot
delete                      `d`, then a tombstone: the same key, no value
both images of an update    `u`
the same, another key       `d` of the old key, its tombstone, `c` of the new key; headers name the other key
a preimage alone            `d` and a tombstone; without a key `u` without `after`
a postimage alone           `c`; without a key `u` without `before`
==========================  ==========================================================================================

An image is alone if the other one is in another file, because an update moved the row to another partition, or
elsewhere in the file. With keys, rows come here with the images of each key put together (`tailer.changelog.engine`),
so an image alone means that its key was added or removed. Without keys neither a delete nor an insert is made up, and a
`u` without `after` does not mean that the row is deleted: it may come after the one with `after`.

A change file does not say which images belong together, so their places decide. Two rows can be the images of one
update if they follow each other, are of the two kinds, in either order, and no row of the file is between them (their
row indexes differ by one at most). Such a pair is certain if both have the same row index (an update found by comparing
rows), likely if both have the same key, otherwise possible. Of possible pairs, one with the preimage first, as Delta
writes them, is more certain: in the other order, a row that moved to this file may come before another update. A pair
counts

- unless a more certain pair has one of its two rows, and
- if it is only possible: unless the row before it or after it is one more image of the kind next to it. That happens in
  a file with first all preimages, then all postimages, where the last preimage and the first postimage are of different
  rows.

Of pairs that share rows every other one counts, from the first. All other images are alone. So a row depends on the two
rows before and after it and on the number of pairs before. A batch that ends in between leaves at most two rows
undecided.

A message's position is its row's; that of a `u` is the later image's. If the key changed, the `d` has the earlier
image's position and the `c` the later one's, which are equal if the update was found by comparing rows.
"""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.events import ChangeType
from tailer_sinks.encoding.columns import TEXT

__all__ = [
    "DELETE",
    "INSERT",
    "KINDS",
    "NEW_KEY",
    "NO",
    "NO_ROW",
    "OLD_KEY",
    "ONE",
    "PREIMAGE",
    "UNRELATED",
    "ZERO",
    "decided",
    "has_deletes",
    "moved",
    "old_images",
    "pairs",
    "plan",
    "repeated",
]

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"

KINDS: Final = pa.array([ChangeType.INSERT, ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE])
INSERT, DELETE, PREIMAGE, POSTIMAGE = (pa.scalar(kind, pa.int32()) for kind in range(4))

# Relations of two consecutive rows; of two pairs with a row in common the greater one counts.
DOUBLED, UNRELATED, BACKWARD, POSSIBLE, LIKELY, SURE = (pa.scalar(rank, pa.int8()) for rank in range(-1, 5))

# Actions for a row, and the operations of their messages; None is a tombstone.
INSERTED, DELETED, UPDATED, MOVED, JOINED = (pa.scalar(action, pa.int64()) for action in range(5))
OPERATIONS: Final[tuple[tuple[str | None, ...], ...]] = (("c",), ("d", None), ("u",), ("d", None, "c"), ())
SLOTS: Final = pa.scalar(max(map(len, OPERATIONS)), pa.int64())
WITH_BEFORE: Final = pa.array(["d", "u"], TEXT)
WITH_AFTER: Final = pa.array(["c", "r", "u"], TEXT)
CREATE: Final = pa.scalar("c", TEXT)

ZERO: Final = pa.scalar(0, pa.int64())
ONE: Final = pa.scalar(1, pa.int64())
NO_ROW: Final = pa.scalar(None, pa.int64())
NO: Final = pa.array([False])


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of images. `second`: for each row, whether it and the row before it are an update.

    `relations`: the possible relation of each row and the next one; one less than there are rows.
    """

    second: pa.Array
    relations: pa.Array


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows of which each message is made, null if there is none.

    `before`, `after`: the images. `row`: whose row id it has. `position`: whose row index. `key`: whose key.
    `operation`: null for a tombstone. `new_key`, `old_key`: whose key a header names, null for messages without.
    """

    before: pa.Array
    after: pa.Array
    row: pa.Array
    position: pa.Array
    key: pa.Array
    operation: pa.Array
    new_key: pa.Array
    old_key: pa.Array


def has_deletes(kinds: pa.Array) -> bool:
    """Return whether there are deletes."""
    return bool(pc.any(pc.equal(kinds, DELETE)).as_py())


def pairs(kinds: pa.Array, row_index: pa.Array, keys: pa.Array | None, earlier: pa.Scalar) -> Pairs:
    """Pair rows to updates; `earlier`: the relation of the first row and the one before it."""
    relations = _relations(kinds, row_index, keys)
    before = pa.concat_arrays([pa.array([earlier]), relations.slice(0, max(0, len(relations) - 1))])
    before = before.slice(0, len(relations))
    following = pa.concat_arrays([relations.slice(1), pa.array([UNRELATED])]).slice(0, len(relations))
    surest = pc.greater_equal(relations, pc.max_element_wise(before, following))
    doubled = pc.equal(pc.min_element_wise(before, following), DOUBLED)
    linked = pc.and_(pc.greater(relations, UNRELATED), surest)
    linked = pc.and_not(linked, pc.and_(pc.less_equal(relations, POSSIBLE), doubled))
    return Pairs(pa.concat_arrays([NO, _every_other(linked)]).slice(0, len(kinds)), relations)


def _relations(kinds: pa.Array, row_index: pa.Array, keys: pa.Array | None) -> pa.Array:
    """Return the possible relation of each row and the next one."""
    count = len(kinds) - 1
    one, other = kinds.slice(0, count), kinds.slice(1)
    step = pc.subtract(row_index.slice(1), row_index.slice(0, count))
    images = pc.and_(pc.greater_equal(one, PREIMAGE), pc.greater_equal(other, PREIMAGE))
    ranks = pc.if_else(pc.equal(one, PREIMAGE), POSSIBLE, BACKWARD)
    if keys is not None:
        ranks = pc.if_else(pc.equal(keys.slice(0, count), keys.slice(1)), LIKELY, ranks)
    ranks = pc.if_else(pc.equal(step, ZERO), SURE, ranks)
    ranks = pc.if_else(pc.equal(one, other), DOUBLED, ranks)
    return pc.if_else(pc.and_(images, pc.less_equal(step, ONE)), ranks, UNRELATED)


def _every_other(linked: pa.Array) -> pa.Array:
    """Select from each run of true values the first, the third and so on."""
    numbers = pa.arange(0, len(linked))
    follows = pa.concat_arrays([NO, linked]).slice(0, len(linked))
    starts = pc.cumulative_max(pc.if_else(follows, ZERO, numbers))
    odd = pc.equal(pc.bit_wise_and(pc.subtract(numbers, starts), ONE), ONE)
    return pc.and_not(linked, odd)


def decided(kinds: pa.Array, images: Pairs) -> int:
    """Return how many rows, from the first, do not depend on the row after the last one."""
    count = len(kinds)
    if kinds[-1].as_py() < PREIMAGE.as_py():
        return count
    if count == 1 or images.relations[-1].as_py() <= UNRELATED.as_py() or images.second[count - 2].as_py():
        return count - 1
    return count - 2


def plan(kinds: pa.Array, second: pa.Array | None, keys: pa.Array | None, tombstones: bool, created: str) -> Plan:
    """Plan the messages of rows of these kinds, in order.

    `second`: as in `Pairs`; `created`: the operation of an insert.
    """
    count = len(kinds)
    second = pa.repeat(NO[0], count) if second is None else second
    numbers = pa.arange(0, count)
    one_earlier = pc.if_else(second, pc.subtract(numbers, ONE), NO_ROW)
    before = pc.if_else(old_images(kinds), numbers, one_earlier)
    after = pc.if_else(old_images(kinds), one_earlier, numbers)
    joined = pa.concat_arrays([second.slice(1), NO])
    actions = _actions(kinds, second, joined, keys)

    table = [[op for op in ops if op is not None or tombstones] for ops in OPERATIONS]
    table[INSERTED.as_py()] = [created]
    rows, slots = repeated(pa.array([len(ops) for ops in table], pa.int64()).take(actions))
    width = SLOTS.as_py()
    flat = pa.array([op for ops in table for op in (*ops, *[None] * (width - len(ops)))], TEXT)
    actions = actions.take(rows)
    operation = flat.take(pc.add(pc.multiply(actions, SLOTS), slots))

    before, after = before.take(rows), after.take(rows)
    creates = pc.fill_null(pc.equal(operation, CREATE), pa.scalar(False))
    moves = pc.equal(actions, MOVED)
    key = pc.if_else(creates, after, pc.coalesce(before, after))
    new_key = pc.if_else(pc.and_not(moves, creates), after, NO_ROW)
    old_key = pc.if_else(pc.and_(moves, creates), before, NO_ROW)
    position = pc.if_else(pc.and_not(moves, creates), pc.subtract(rows, ONE), rows)
    before = pc.if_else(pc.is_in(operation, WITH_BEFORE), before, NO_ROW)
    after = pc.if_else(pc.is_in(operation, WITH_AFTER), after, NO_ROW)
    return Plan(
        before=before,
        after=after,
        row=pc.coalesce(after, before),
        position=position,
        key=key,
        operation=operation,
        new_key=new_key,
        old_key=old_key,
    )


def _actions(kinds: pa.Array, second: pa.Array, joined: pa.Array, keys: pa.Array | None) -> pa.Array:
    """Return the action for each row; `joined`: whether it is the first row of an update."""
    if keys is None:
        return pc.if_else(joined, JOINED, pc.min_element_wise(pc.cast(kinds, pa.int64()), UPDATED))
    actions = pc.if_else(old_images(kinds), DELETED, INSERTED)
    actions = pc.if_else(second, pc.if_else(moved(second, keys), MOVED, UPDATED), actions)
    return pc.if_else(joined, JOINED, actions)


def old_images(kinds: pa.Array) -> pa.Array:
    """Return which rows are deletes or preimages."""
    return pc.or_(pc.equal(kinds, DELETE), pc.equal(kinds, PREIMAGE))


def moved(second: pa.Array, keys: pa.Array) -> pa.Array:
    """Return which rows end an update (`Pairs.second`) that gave a row another key."""
    same = pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1))
    return pc.and_not(second, pa.concat_arrays([NO, same]))


def repeated(counts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Repeat each row's number for each of its messages, and number these. `counts`: int64."""
    ends = pc.cumulative_sum(counts)
    starts = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    total = starts[-1].as_py()
    rows = pc.list_parent_indices(pa.LargeListArray.from_arrays(starts, pa.nulls(total)))
    return rows, pc.subtract(pa.arange(0, total), starts.take(rows))
