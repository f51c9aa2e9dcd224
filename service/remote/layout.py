"""Where the rows of a table lie in a cluster: the names of keys, the rows of a key, and the two records about them.

A table is cut into blocks of rows, one key each. The hash tag of a block's key holds model, table, fingerprint of the
artifact and the shard: `{es:MODEL/TABLE/FINGERPRINT/SHARD}BLOCK`. Shards spread a table over the slots. A fingerprint
stands for one manifest, and with that for the table's checksum. So a row of one
version can not be taken for that of another.

Two records have tags without a shard, JSON both: `{es:MODEL/TABLE}FINGERPRINT` says what was written, and
`{es:MODEL/TABLE}pointer` which fingerprints are whole, newest first. A writer changes the pointer last.

Rows that deltas and upserts changed are written over in their blocks. `{es:MODEL/TABLE/FINGERPRINT/SHARD}orders` has
the order of the last change of each such row. Servers tell each other of changes in `{es:MODEL/TABLE}FINGERPRINT/NOTE`.
"""

from __future__ import annotations

import json
from binascii import crc_hqx
from dataclasses import asdict, dataclass
from functools import cached_property
from urllib.parse import quote

import numpy as np

from service.artifact.manifest import TableEntry
from service.errors import ArtifactError
from service.types import TABLE_DTYPES, Array, stored_columns

LAYOUT = 1
NUM_SLOTS = 16384
# A value of at most this many bytes, with what the engine adds, fits the allocator's class of 16 KiB.
_BLOCK_BYTES = 16384 - 256
_MOST_SHARDS = 4096
_FINGERPRINT_DIGITS = 16
# sequence: the last number of an upsert. held: number -> upsert that is not in all blocks and replicas yet. files:
# number -> checksum of each delta file that is written. changes: a stream of the rows that were changed last.
NOTES = ("sequence", "held", "files", "changes")


def slot_of(key: str) -> int:
    """Returns the slot of a key.

    Source: CRC16 of the tag, as the cluster specification of Redis has it.

    >>> slot_of("{user1000}.following"), slot_of("123456789")
    (3443, 12739)
    """
    begin = key.find("{")
    end = key.find("}", begin + 1) if begin >= 0 else -1
    tag = key[begin + 1 : end] if end > begin + 1 else key
    return crc_hqx(tag.encode(), 0) % NUM_SLOTS


def fingerprint_text(fingerprint: bytes) -> str:
    """Returns a version's fingerprint as keys have it."""
    return fingerprint.hex()[:_FINGERPRINT_DIGITS]


def row_bytes_of(entry: TableEntry) -> int:
    """Returns the bytes of one row: its numbers, and behind them the float32 scale of an int8 or int4 row."""
    columns = stored_columns(entry.dtype, entry.embedding_dim)
    return columns * np.dtype(TABLE_DTYPES[entry.dtype]).itemsize + (4 if entry.scale is not None else 0)


@dataclass(frozen=True)
class TableLayout:
    """The keys of one table of one version. Blocks but the last have block_rows rows of row_bytes bytes each."""

    model: str
    table: str
    fingerprint: str
    vocabulary_size: int
    row_bytes: int
    block_rows: int
    num_shards: int

    @staticmethod
    def of(model: str, table: str, fingerprint: bytes, entry: TableEntry) -> TableLayout:
        """Returns the layout that this version of the software writes and reads."""
        row_bytes = row_bytes_of(entry)
        block_rows = max(_BLOCK_BYTES // row_bytes, 1)
        num_blocks = -(-entry.vocabulary_size // block_rows)
        name = fingerprint_text(fingerprint)
        shards = min(num_blocks, _MOST_SHARDS)
        return TableLayout(model, table, name, entry.vocabulary_size, row_bytes, block_rows, shards)

    @property
    def num_blocks(self) -> int:
        """How many keys hold rows."""
        return -(-self.vocabulary_size // self.block_rows)

    @property
    def nbytes(self) -> int:
        """The bytes of all rows."""
        return self.vocabulary_size * self.row_bytes

    @cached_property
    def tag(self) -> str:
        """The beginning of every block's key."""
        return f"{{es:{_escaped(self.model)}/{_escaped(self.table)}/{self.fingerprint}/"

    @property
    def record(self) -> str:
        """The key of what is said about this fingerprint."""
        return f"{{es:{_escaped(self.model)}/{_escaped(self.table)}}}{self.fingerprint}"

    @property
    def pointer(self) -> str:
        """The key of the list of whole fingerprints."""
        return f"{{es:{_escaped(self.model)}/{_escaped(self.table)}}}pointer"

    def note(self, name: str) -> str:
        """Returns the key of one of NOTES."""
        return f"{self.record}/{name}"

    def orders(self, shard: int) -> str:
        """Returns the key of the hash from changed rows of a shard to the order of their last change."""
        return f"{self.tag}{shard:04x}}}orders"

    @cached_property
    def slots(self) -> Array:
        """The slot of each shard, [S] int64."""
        return np.array([slot_of(f"{self.tag}{shard:04x}}}") for shard in range(self.num_shards)], np.int64)

    def key(self, block: int) -> str:
        """Returns a block's key."""
        return f"{self.tag}{block % self.num_shards:04x}}}{block:08x}"

    def rows(self, block: int) -> tuple[int, int]:
        """Returns the rows of a block: first, and one behind the last."""
        begin = block * self.block_rows
        return begin, min(begin + self.block_rows, self.vocabulary_size)

    def record_text(self, *, is_whole: bool) -> str:
        """Returns what the record says."""
        return json.dumps({"layout": LAYOUT, "is_whole": is_whole, **asdict(self)})

    def check_record(self, text: str | None, pointer: str | None) -> None:
        """Raises ArtifactError unless a cluster holds all of this table, as the record and the pointer say."""
        what = f"table {self.table!r} of model {self.model!r}, fingerprint {self.fingerprint},"
        if text is None:
            raise ArtifactError(f"{what} is not in the cluster; write it with `model-export push`")
        if text != self.record_text(is_whole=True):
            raise ArtifactError(f"{what} is written in part only, or in another layout; run `model-export push` again")
        if self.fingerprint not in Pointer.of(pointer).fingerprints:
            raise ArtifactError(f"{what} is not in use any more: the cluster's pointer names {pointer}")


def layout_of_record(text: str) -> TableLayout | None:
    """Returns the layout that a record describes; None where the record is of another layout."""
    data = json.loads(text)
    if data.pop("layout", None) != LAYOUT:
        return None
    del data["is_whole"]
    return TableLayout(**data)


@dataclass(frozen=True, slots=True)
class Pointer:
    """The pointer of a table.

    fingerprints: those that are whole, newest first. others: those that are being written or removed.
    """

    fingerprints: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @staticmethod
    def of(text: str | None) -> Pointer:
        """Reads a pointer; an empty one where there is none."""
        if text is None:
            return Pointer()
        data = json.loads(text)
        return Pointer(tuple(data["fingerprints"]), tuple(data["others"]))

    @property
    def text(self) -> str:
        """Returns what the key holds."""
        return json.dumps({"layout": LAYOUT, "fingerprints": self.fingerprints, "others": self.others})


def _escaped(name: str) -> str:
    # A brace or a slash of a name would end the tag, or the name.
    return quote(name, safe="")
