"""The one reader of options: a msgspec struct says which there are, and faults are named by option, all at once.

The configuration file, its sinks and the options of the data source for Spark are read here. A struct may have dotted
or camel-case names for its fields (`rename`), tables for options (fields that are structs), and bounds for numbers
(`msgspec.Meta`). Its class variables, if any: `refused` maps names that are not options to a reason and a next step,
`missing` maps required options to the next step where they are missing, `remedies` maps options to the next step where
their value is of the wrong type.

A field that is a `Secret`, or a table of them, takes a text or the place of the secret. There were options for each
place: `password_file` and `password_command` are refused by name beside any such field `password`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import EnumType
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from tailer.errors import ConfigError, did_you_mean
from tailer.stores.secrets import WAYS, Secret

__all__ = [
    "as_one",
    "converted",
    "described",
    "each_fault",
    "faults_by",
    "faults_of",
    "flattened",
    "former_secret",
    "from_texts",
    "option_names",
    "read_options",
]

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

# A type that an option may have.
SECRETS: Final = dict[str, Secret]

_WORDS: Final[Mapping[Any, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Secret: "text, or a table with one of file, command and env",
}
_SECRET: Final = f"Give a text in quotes, or {', '.join(f'{{{way} = {value}}}' for way, value in WAYS.items())}."
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
    errors = [ConfigError(f"{name}.{where}", fault.reason, fault.remedy) for where, fault in faults.items()]
    if all(field.encode_name in sound for field in msgspec.structs.fields(shape) if field.required):
        given = converted(sound, shape)
        more = (fault for check in checks for fault in check(name, given))
        errors += (fault for fault in more if not faults or _stands_alone(name, fault, sound, faults))
        if not errors:
            return given
    raise as_one(name, errors)


def converted(value: object, kind: type[T]) -> T:
    """Return a value of the configuration as a `kind`. Raises `msgspec.ValidationError`."""
    return msgspec.convert(value, kind, dec_hook=lambda _, given: Secret.of(given))


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
    return [fault for fault in faults.exceptions if isinstance(fault, ConfigError)]


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
        elif field.type == SECRETS and isinstance(options[name], Mapping):
            for key, value in options[name].items():
                if not _is_valid(value, Secret):
                    yield ConfigError(f"{name}.{key}", f"must be {described(Secret)}", _SECRET)
        elif not _is_valid(options[name], field.type):
            next_steps: Mapping[str, str] = getattr(shape, "remedies", {})
            remedy = next_steps.get(name) or _example(name, options[name], field.type, texts=texts)
            yield ConfigError(name, f"must be {described(field.type)}", remedy)


def former_secret(name: str, shape: type[msgspec.Struct]) -> ConfigError | None:
    """Return the refusal of `password_file` and `password_command`, where `password` is a secret; None: of no other."""
    stem, _, way = name.rpartition("_")
    for field in msgspec.structs.fields(shape) if way in WAYS else ():
        table, option = _table(field.type), field.encode_name
        if table is not None and (inner := former_secret(name, table)) is not None:
            return ConfigError(name, f"{inner.reason}, in the table {option}", inner.remedy)
        if field.name == stem and field.type in (Secret, SECRETS):
            place = f"{{{way} = {WAYS[way]}}}" if field.type is Secret else f"{{NAME = {{{way} = {WAYS[way]}}}}}"
            spelled = f'"{option}"' if "." in option else option
            remedy = f"Write it so, or with __{way.upper()} at the end of the name in the environment."
            return ConfigError(name, f"is now {spelled} = {place}", remedy)
    return None


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
        return _any_of([member.value for member in members])
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is Literal:
        return _any_of(arguments)
    if origin is Annotated:
        least, most = arguments[1].ge, arguments[1].le
        bounds = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
        return arguments[1].description or described(arguments[0]) + bounds
    if origin is list:
        return f"a list of {described(arguments[0])}"
    if _table(kind) is not None or origin is dict or not arguments:
        return "a table"
    return " or ".join(described(member) for member in arguments if member is not type(None))


def _any_of(values: Iterable[Any]) -> str:
    *others, last = map(repr, values)
    return f"{', '.join(others)} or {last}" if others else last


def _table(kind: Any) -> type[msgspec.Struct] | None:
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def _unknown(name: str, shape: type[msgspec.Struct]) -> ConfigError:
    refused: Mapping[str, tuple[str, str]] = getattr(shape, "refused", {})
    if name in refused:
        reason, remedy = refused[name]
        return ConfigError(name, reason, remedy)
    if (former := former_secret(name, shape)) is not None:
        return former
    options = option_names(shape)
    return ConfigError(
        name, "no such option", did_you_mean(name, options) or f"The options are: {', '.join(options) or 'none'}."
    )


def _is_valid(value: Any, kind: Any) -> bool:
    try:
        converted(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _example(name: str, value: Any, kind: Any, *, texts: bool) -> str:
    """Return the next step for a value of the wrong type."""
    if kind is Secret:
        return _SECRET
    wanted = {kind, *get_args(kind)}
    metas = [meta for member in wanted for meta in getattr(member, "__metadata__", ())]
    examples = [meta.examples[0] for meta in metas if isinstance(meta, msgspec.Meta) and meta.examples]
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        example = next(iter(item)).value if isinstance(item, EnumType) else "a"
        return f'Give a list, such as {name} = ["{example}"].'
    if _table(kind) is not None:
        return f"Add a table that ends with .{name}]."
    if any(get_origin(member) is dict for member in wanted):
        return "Make it a table in the file, or a JSON object in the environment."
    if examples:
        return f"Give a value such as {examples[0]}."
    if isinstance(value, str) and not texts:
        is_choice = any(get_origin(member) is Literal or isinstance(member, EnumType) for member in wanted)
        return "Give one of these." if is_choice else "Write it without quotes."
    if {int, float} & _kinds(kind):
        return "Give such a number."
    return "Write it in quotes." if str in wanted else "Give one of these."


def _kinds(kind: Any) -> set[Any]:
    """Return the types of a union, without their bounds."""
    return {get_args(member)[0] if get_origin(member) is Annotated else member for member in (kind, *get_args(kind))}


def _sound(
    options: Mapping[str, Any], shape: type[msgspec.Struct], faults: Mapping[str, ConfigError], table: str = ""
) -> dict[str, Any]:
    """Return the options without a fault."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(shape):
        name = field.encode_name
        if name in options and table + name not in faults:
            inner, value = _table(field.type), options[name]
            if inner is not None:
                values[name] = _sound(value, inner, faults, f"{table}{name}.")
            elif not any(fault.startswith(f"{table}{name}.") for fault in faults):
                values[name] = value
    return values


def _stands_alone(name: str, fault: ConfigError, sound: Mapping[str, Any], faults: Iterable[str]) -> bool:
    """Return whether a check failed because of valid options, and not because others count as missing."""
    text, option = f"{fault.reason} {fault.remedy}", fault.where.removeprefix(f"{name}.")
    table, _, inner = option.partition(".")
    given = table in sound and (not inner or inner in sound[table])
    # An option of a table is named without the table.
    related = any(re.search(rf"\b{re.escape(faulty.partition('.')[2] or faulty)}\b", text) for faulty in faults)
    return given and not related
