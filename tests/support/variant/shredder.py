"""Shred Variants, for tests alone: any schema, whatever does not fit it stays in `value`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

from tests.support.variant.encoder import Layout, Scalar, encode, metadata, names_in

__all__ = ["Shredding", "shred", "shreddings"]

# Arrow types of `typed_value`, and the types of Variants that fit them.
_LEAVES: Final = {
    3: pa.int8(),
    4: pa.int16(),
    5: pa.int32(),
    6: pa.int64(),
    16: pa.string(),
    1: pa.bool_(),
    10: pa.decimal128(38, 3),
}


@dataclass(frozen=True)
class Shredding:
    """The form of a place: shredded as the type `number`, an array or an object, or not at all."""

    number: int | None = None
    item: "Shredding | None" = None
    members: dict[str, "Shredding"] = field(default_factory=dict)
    value_first: bool = True

    @property
    def typed(self) -> pa.DataType | None:
        """The type of `typed_value`."""
        if self.number is not None:
            return _LEAVES[self.number]
        if self.item is not None:
            return pa.list_(self.item.place())
        return pa.struct([(name, each.place()) for name, each in self.members.items()]) if self.members else None

    def place(self, *more: tuple[str, pa.DataType]) -> pa.DataType:
        """Return the type of the place."""
        typed = [] if self.typed is None else [("typed_value", self.typed)]
        fields = [("value", pa.binary()), *typed]
        return pa.struct([*more, *(fields if self.value_first else reversed(fields))])


def shreddings() -> st.SearchStrategy[Shredding]:
    """Return ways to shred."""
    names = st.sampled_from(["", "a", "b", "0", "ab"])
    leaves = st.builds(Shredding, st.sampled_from([None, *_LEAVES]), value_first=st.booleans())
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(Shredding, item=inner, value_first=st.booleans())
            | st.builds(Shredding, members=st.dictionaries(names, inner, min_size=1, max_size=3))
        ),
        max_leaves=6,
    )


def shred(rows: list[Any], shredding: Shredding, layouts: Iterator[Layout]) -> pa.StructArray:
    """Return a column with the values of `rows`; None is SQL NULL."""
    found: list[dict[str, Any] | None] = []
    for row in rows:
        if row is None:
            found.append(None)
            continue
        names = sorted(names_in(row))
        found.append({"metadata": metadata(names), **_place(row, shredding, names, layouts)})
    return pa.array(found, shredding.place(("metadata", pa.binary())))


def _place(value: Any, shredding: Shredding, names: list[str], layouts: Iterator[Layout]) -> dict[str, Any]:
    def rest(left: Any) -> bytes:
        return encode(left, names, layouts)

    if isinstance(value, Scalar) and (fits := _leaf(value, shredding.number)) is not None:
        return {"value": None, "typed_value": fits}
    if isinstance(value, list) and shredding.item is not None:
        return {"value": None, "typed_value": [_place(each, shredding.item, names, layouts) for each in value]}
    if isinstance(value, dict) and shredding.members:
        typed = {
            name: _place(value[name], each, names, layouts) if name in value else {"value": None}
            for name, each in shredding.members.items()
        }
        left = {name: child for name, child in value.items() if name not in shredding.members}
        return {"value": rest(left) if left else None, "typed_value": typed}
    return {"value": rest(value), "typed_value": None}


def _leaf(value: Scalar, number: int | None) -> Any:
    """Return what `typed_value` holds of a scalar; None where it does not fit."""
    if number == 1 and value.number in (1, 2):
        return value.number == 1
    if number == 10 and value.number == 10 and Decimal(value.value).as_tuple().exponent == -3:
        return Decimal(value.value)
    return value.value if number == value.number and number not in (1, 10) else None
