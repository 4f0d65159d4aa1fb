"""Metadata of long histories: what is parsed again, and how many requests find the newest file."""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from tailer.formats.iceberg.lineage import Lineage
from tailer.formats.iceberg.metadata.current import CurrentDocument, FolderPointer
from tailer.formats.iceberg.metadata.document import Document, parse_document
from tailer.stores.local import LocalStore
from tailer.stores.port import ObjectMeta

pytestmark = pytest.mark.anyio


class CountingStore(LocalStore):
    """Counts requests for the sizes of files."""

    stats = 0

    @override
    async def stat(self, name: str) -> ObjectMeta:
        self.stats += 1
        return await super().stat(name)


class Metadata:
    """Metadata that changes as writers change it, and sometimes as none would."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._numbers = 0
        self.content: dict[str, Any] = {"format-version": 1, "location": "/t", "table-uuid": "u"}
        self._make_again()

    def change(self) -> bytes:
        """Change something; return the file."""
        changes = [self._append] * 8 + [self._upgrade, self._expire, self._go_back, self._turn, self._make_again]
        for _ in range(self._chance.randrange(4)):
            self._chance.choice(changes)()
        indent = 2 if self._chance.random() < 0.2 else None
        return json.dumps(self.content, indent=indent).encode()

    def _append(self) -> None:
        self._numbers += 1
        number = self._numbers if self.content["format-version"] > 1 else 0
        snapshot = {
            "snapshot-id": self._numbers,
            "sequence-number": number,
            "timestamp-ms": self._numbers,
            "summary": {"operation": "append", "note": '] , "}'},
        }
        if self.content["current-snapshot-id"] > 0:
            snapshot["parent-snapshot-id"] = self.content["current-snapshot-id"]
        self.content["snapshots"].append(snapshot)
        self.content["current-snapshot-id"] = self._numbers

    def _upgrade(self) -> None:
        self.content["format-version"] = 2

    def _expire(self) -> None:
        snapshots = self.content["snapshots"]
        if snapshots:
            del snapshots[self._chance.randrange(len(snapshots))]

    def _go_back(self) -> None:
        if self.content["snapshots"]:
            self.content["current-snapshot-id"] = self._chance.choice(self.content["snapshots"])["snapshot-id"]

    def _turn(self) -> None:
        self.content["snapshots"].reverse()

    def _make_again(self) -> None:
        self.content["current-snapshot-id"] = -1
        self.content["snapshots"] = []


@pytest.mark.parametrize("seed", range(20))
def test_what_is_not_parsed_again_is_the_same(seed: int) -> None:
    metadata = Metadata(seed)
    document: Document | None = None
    lineage: Lineage | None = None
    for _ in range(40):
        data = metadata.change()
        anew = parse_document(data, "t", "m")
        document = parse_document(data, "t", "m", document)
        assert document.history.by_id == anew.history.by_id
        assert msgspec.structs.replace(document, history=anew.history) == anew
        lineage = Lineage(document, "main", "t", lineage)
        assert lineage.steps == Lineage(anew, "main", "t").steps


def test_snapshots_of_before_are_the_same_objects() -> None:
    """So nothing of them was parsed, however the file is formatted."""
    for indent in (None, 2):
        content: dict[str, Any] = {"format-version": 2, "location": "/t", "snapshots": []}
        document, kept = None, dict[int, object]()
        for number in range(1, 20):
            content["snapshots"].append({"snapshot-id": number, "timestamp-ms": number, "sequence-number": number})
            document = parse_document(json.dumps(content, indent=indent).encode(), "t", "m", document)
            assert all(document.history.by_id[one] is snapshot for one, snapshot in kept.items())
            kept = dict(document.history.by_id)
            assert len(kept) == number


async def test_many_new_versions_are_found_by_few_requests(tmp_path: Path) -> None:
    (folder := tmp_path / "metadata").mkdir()
    store = CountingStore(tmp_path)
    current = CurrentDocument(FolderPointer(store))

    def write(first: int, last: int) -> None:
        for version in range(first, last + 1):
            content = {"format-version": 2, "location": str(tmp_path), "last-updated-ms": version}
            (folder / f"v{version}.metadata.json").write_text(json.dumps(content))

    written = 1
    write(1, 1)
    await current.newest()
    for count, most in ((0, 1), (1, 2), (2, 4), (3, 4), (5, 7), (1000, 20), (0, 1)):
        write(written + 1, written + count)
        written += count
        store.stats = 0
        document = await current.advance()
        assert (document is None) == (count == 0)
        assert document is None or document.last_updated_ms == written
        assert store.stats <= most, count
