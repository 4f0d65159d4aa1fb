"""The one reader of options: a msgspec struct says which there are, and faults are named by option, all at once.

The configuration file, its sinks and the options of the data source for Spark are read here. A struct may have dotted
or camel-case names for its fields (`rename`), tables for options (fields that are structs), and bounds for numbers
(`msgspec.Meta`). Its class variables, if any: `refused` maps names that are not options to a reason and a next step,
`missing` maps required options to the next step where they are missing, `remedies` maps options to the next step where
their value is of the wrong type.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import EnumType
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from tailer.errors import ConfigError, did_you_mean

__all__ = [
    "as_one",
    "described",
    "each_fault",
    "faults_by",
    "faults_of",
    "flattened",
    "from_texts",
    "option_names",
    "read_options",
]

S = TypeVar("S", bound=msgspec.Struct)

_WORDS: Final[Mapping[Any, str]] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_BOOLEANS: Final[Mapping[str, bool]] = {"true": True, "false": False}
_WHOLE: Final = re.compile(r"[0-9]{1,19}")


def read_options(
    name: str, options: Mapping[str, Any], shape: type[S], *checks: Callable[[str, S], Iterable[ConfigError]]
) -> S:
    """Read the options of the thing called `name` as a `shape`.

    `checks`: further checks of options that have the right types.

    Raises `ConfigError` naming `<name>.<option>` for an option that is unknown, missing or of the wrong type, and for
    each failed check; several of them as an `ExceptionGroup`. Values are not converted, and are in no text.
    """
    faults = {fault.where: fault for fault in faults_of(options, shape)}
    sound = _sound(options, shape, faults)
    found = [ConfigError(f"{name}.{where}", fault.reason, fault.remedy) for where, fault in faults.items()]
    if all(field.encode_name in sound for field in msgspec.structs.fields(shape) if field.required):
        given = msgspec.convert(sound, shape)
        more = (fault for check in checks for fault in check(name, given))
        found += (fault for fault in more if not faults or _stands_alone(name, fault, sound, faults))
        if not found:
            return given
    raise as_one(name, found)


def as_one(name: str, faults: Sequence[ConfigError]) -> ConfigError | ExceptionGroup[ConfigError]:
    """Return what to raise for the faults of the thing called `name`, at least one."""
    return faults[0] if len(faults) == 1 else ExceptionGroup(f"options of {name}", faults)


def each_fault(error: ConfigError | ExceptionGroup[Exception]) -> list[ConfigError]:
    """Return the faults that `as_one` joined. Raises anything else that is in the group."""
    if isinstance(error, ConfigError):
        return [error]
    faults, rest = error.split(ConfigError)
    if rest is not None or faults is None:
        raise error
    return [each for each in faults.exceptions if isinstance(each, ConfigError)]


def faults_by(read: Callable[[], object]) -> list[ConfigError]:
    """Return the faults that `read`, which reads options, raises."""
    try:
        read()
    except (ConfigError, ExceptionGroup) as error:
        return each_fault(error)
    return []


def faults_of(options: Mapping[str, Any], shape: type[msgspec.Struct], *, texts: bool = False) -> Iterator[ConfigError]:
    """Yield an error for each option that is unknown, missing or of the wrong type; `where` is its name.

    `texts`: users can only write texts, and `options` are `from_texts`.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(shape)}
    unknown = [_unknown(name, shape) for name in sorted(options.keys() - fields.keys())]
    yield from unknown
    for name, field in fields.items():
        if name not in options:
            if field.required and not any(f"Did you mean {name!r}?" in fault.remedy for fault in unknown):
                remedies: Mapping[str, str] = getattr(shape, "missing", {})
                yield ConfigError(name, "is missing", remedies.get(name, f"The options are: {', '.join(fields)}."))
        elif (table := _table(field.type)) is not None and isinstance(options[name], Mapping):
            for fault in faults_of(options[name], table, texts=texts):
                yield ConfigError(f"{name}.{fault.where}", fault.reason, fault.remedy)
        elif not _is_valid(options[name], field.type):
            next_steps: Mapping[str, str] = getattr(shape, "remedies", {})
            remedy = next_steps.get(name) or _example(name, options[name], field.type, texts=texts)
            yield ConfigError(name, f"must be {described(field.type)}", remedy)


def from_texts(texts: Mapping[str, str], shape: type[msgspec.Struct]) -> dict[str, str | int | bool]:
    """Return options with the booleans and whole numbers that `shape` wants; a text that is neither stays a text."""
    kinds = {field.encode_name: _kinds(field.type) for field in msgspec.structs.fields(shape)}
    values: dict[str, str | int | bool] = dict(texts)
    for name, text in texts.items():
        if bool in kinds.get(name, ()) and text.lower() in _BOOLEANS:
            values[name] = _BOOLEANS[text.lower()]
        elif int in kinds.get(name, ()) and _WHOLE.fullmatch(text):
            values[name] = int(text)
    return values


def flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a table and the tables in it: `a.b` for `b` in the table `a`, after `prefix`.

    TOML reads a name with dots and without quotes as tables in tables.
    """
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def option_names(shape: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the options of a struct, as users write them."""
    return tuple(field.encode_name for field in msgspec.structs.fields(shape))


def described(kind: Any) -> str:
    """Return the values of a type in words: `a whole number of at least 1`, `'a' or 'b'`, `a list of text`."""
    if kind in _WORDS:
        return _WORDS[kind]
    if isinstance(kind, EnumType):
        members: list[Any] = list(kind)
        return _any_of([each.value for each in members])
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is Literal:
        return _any_of(arguments)
    if origin is Annotated:
        return arguments[1].description or described(arguments[0]) + _bounds(arguments[1])
    if origin is list:
        return f"a list of {described(arguments[0])}"
    if _table(kind) is not None or origin is dict or not arguments:
        return "a table"
    return " or ".join(described(each) for each in arguments if each is not type(None))


def _any_of(values: Iterable[Any]) -> str:
    *others, last = map(repr, values)
    return f"{', '.join(others)} or {last}" if others else last


def _bounds(meta: msgspec.Meta) -> str:
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge} to {meta.le}"
    return f" of at least {meta.ge}" if meta.ge is not None else ""


def _table(kind: Any) -> type[msgspec.Struct] | None:
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def _unknown(name: str, shape: type[msgspec.Struct]) -> ConfigError:
    refused: Mapping[str, tuple[str, str]] = getattr(shape, "refused", {})
    if name in refused:
        return ConfigError(name, *refused[name])
    known = option_names(shape)
    return ConfigError(
        name, "no such option", did_you_mean(name, known) or f"The options are: {', '.join(known) or 'none'}."
    )


def _is_valid(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _example(name: str, value: Any, kind: Any, *, texts: bool) -> str:
    """Return the next step for a value of the wrong type."""
    wanted = {kind, *get_args(kind)}
    examples = [meta.examples[0] for each in wanted for meta in _metas(each) if meta.examples]
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        example = next(iter(item)).value if isinstance(item, EnumType) else "a"
        return f'Give a list, such as {name} = ["{example}"].'
    if _table(kind) is not None:
        return f"Add a table that ends with .{name}]."
    if any(get_origin(each) is dict for each in wanted):
        return "Make it a table in the file, or a JSON object in the environment."
    if examples:
        return f"Give a value such as {examples[0]}."
    if isinstance(value, str) and not texts:
        is_choice = any(get_origin(each) is Literal or isinstance(each, EnumType) for each in wanted)
        return "Give one of these." if is_choice else "Write it without quotes."
    if {int, float} & _kinds(kind):
        return "Give such a number."
    return "Write it in quotes." if str in wanted else "Give one of these."


def _kinds(kind: Any) -> set[Any]:
    """Return the types of a union, without their bounds."""
    return {get_args(each)[0] if get_origin(each) is Annotated else each for each in (kind, *get_args(kind))}


def _metas(kind: Any) -> list[msgspec.Meta]:
    return [each for each in getattr(kind, "__metadata__", ()) if isinstance(each, msgspec.Meta)]


def _sound(
    options: Mapping[str, Any], shape: type[msgspec.Struct], faults: Mapping[str, ConfigError], table: str = ""
) -> dict[str, Any]:
    """Return the options without a fault."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(shape):
        name = field.encode_name
        if name in options and table + name not in faults:
            inner, value = _table(field.type), options[name]
            found[name] = value if inner is None else _sound(value, inner, faults, f"{table}{name}.")
    return found


def _stands_alone(name: str, fault: ConfigError, sound: Mapping[str, Any], faults: Iterable[str]) -> bool:
    """Return whether a check failed because of valid options, and not because others count as missing."""
    text, option = f"{fault.reason} {fault.remedy}", fault.where.removeprefix(f"{name}.")
    table, _, inner = option.partition(".")
    given = table in sound and (not inner or inner in sound[table])
    # An option of a table is named without the table.
    related = any(re.search(rf"\b{re.escape(each.partition('.')[2] or each)}\b", text) for each in faults)
    return given and not related
