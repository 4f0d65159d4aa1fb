"""Files of a Lance dataset: the first byte says whether it is a manifest, a transaction or a list of deletions."""

from contextlib import suppress

from tailer.errors import TailerError
from tailer.formats.lance.fragment import DeletionKind, read_deletions
from tailer.formats.lance.history import parse_operation
from tailer.formats.lance.manifest import parse_manifest, refuse_unknown
from tailer.formats.lance.protobuf import InvalidMessage
from tailer.formats.lance.schema import arrow_schema
from tests.fuzz.archives import files_of
from tests.fuzz.target import Target, outcome
from tests.support.histories.recorded_lance import LANCE_HISTORIES

_KINDS = (".manifest", ".txn", ".arrow", ".bin")


def _seeds() -> list[bytes]:
    found = []
    for archive in sorted(LANCE_HISTORIES.glob("*.tar.xz"))[:4]:
        for kind, ending in enumerate(_KINDS):
            files = [data for name, data in files_of(archive) if name.endswith(ending)]
            found += [bytes([kind]) + data for data in files[:: max(1, len(files) // 2)] if len(data) < 8000]
    return found


def _manifest(data: bytes) -> None:
    manifest = parse_manifest(data, "t/_versions/1.manifest")
    with suppress(TailerError):
        refuse_unknown(manifest, "t")
    with suppress(TailerError):
        arrow_schema(manifest, "t")
    with suppress(TailerError):
        assert all(key == each.id for key, each in manifest.fragments_by_id("t").items())
    parse_operation(manifest.transaction or b"")


def _run(data: bytes) -> None:
    match sum(data[:1]) % 4:
        case 0:
            outcome(lambda: _manifest(data[1:]), InvalidMessage)
        case 1:
            outcome(lambda: parse_operation(data[1:]), InvalidMessage)
        case kind:
            outcome(
                lambda: read_deletions((DeletionKind.ARROW, DeletionKind.BITMAP)[kind - 2], data[1:]), InvalidMessage
            )


TARGET = Target(
    _run,
    _seeds,
    tuple(f"tailer.formats.lance.{name}" for name in ("manifest", "protobuf", "history", "fragment", "schema")),
)
