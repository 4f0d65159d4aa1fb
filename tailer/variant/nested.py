"""Nested Arrow columns with some columns within them replaced, such as shredded Variants by unshredded ones."""

from collections.abc import Callable, Mapping

import pyarrow as pa

__all__ = ["Change", "Changes", "changed", "changes_where"]

Change = Callable[[pa.Array], pa.Array]
# By the number of a child: of a list 0, of a map 0 for keys and 1 for values.
Changes = Mapping[int, "Change | Changes"]


def changes_where(kind: pa.DataType, applies: Callable[[pa.DataType], bool], change: Change) -> "Changes | Change":
    """Return what makes `change` in every column of a type for which `applies` is true, in or within a column."""
    if applies(kind):
        return change
    is_map = pa.types.is_map(kind)
    inner = (kind.key_type, kind.item_type) if is_map else [kind.field(index).type for index in range(kind.num_fields)]
    inner_changes = {index: changes_where(child, applies, change) for index, child in enumerate(inner)}
    return {index: changes for index, changes in inner_changes.items() if changes}


def changed(values: pa.Array, changes: "Change | Changes") -> pa.Array:
    """Return a column with the changes made to it, or to the columns within it."""
    if callable(changes):
        return changes(values)
    if not changes:
        return values
    if values.offset:
        values = values.take(pa.array(range(len(values)), pa.int64()))  # what is nested in a slice may begin anywhere
    kind = values.type
    if pa.types.is_struct(kind):
        children = [changed(child, changes.get(index, {})) for index, child in enumerate(values.flatten())]
        fields = [kind.field(index).with_type(child.type) for index, child in enumerate(children)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null())
    if pa.types.is_map(kind):
        keys, items = changed(values.keys, changes.get(0, {})), changed(values.items, changes.get(1, {}))
        fields = [kind.key_field.with_type(keys.type), kind.item_field.with_type(items.type)]
        entries = pa.StructArray.from_arrays([keys, items], fields=fields)
        return pa.Array.from_buffers(pa.map_(*fields), len(values), values.buffers()[:2], children=[entries])
    items = changed(values.values, changes[0])
    field = kind.value_field.with_type(items.type)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(items, type=pa.list_(field, kind.list_size), mask=values.is_null())
    wanted = pa.large_list(field) if pa.types.is_large_list(kind) else pa.list_(field)
    return pa.Array.from_buffers(wanted, len(values), values.buffers()[:2], children=[items])
