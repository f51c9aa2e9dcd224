"""Writes the tables of an artifact into a Redis cluster, block by block, under the keys of service.remote.layout.

A run that was stopped goes on where it stopped: a block that is there is not written again. Then every block is read
back and compared, and only then the pointer names the new fingerprint. One run at a time may write a table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import redis
from tqdm import tqdm

from model_export.errors import ExportError
from model_export.folder_checks import check_described
from service.artifact.delta_file import fingerprint_of
from service.artifact.hashes import crc32c_of, masked
from service.artifact.manifest import TableEntry, TableScale
from service.errors import did_you_mean
from service.remote.address import StoreAddress
from service.remote.layout import NOTES, BlockFile, Pointer, TableLayout, layout_of_record
from service.remote.topology import store_client

# Number of commands in one batch to the Valkey or Redis cluster. With blocks of 16 KB, a batch has 2 MB.
_BATCH = 128
_TIMEOUT_S = 30.0
_REPLICAS_S = 60.0

# A Lua script for Redis that writes a block again, and forgets which of its rows were changed. KEYS: the block, and the
# hash `orders`, which maps each changed row to the order number of its last change. ARGV: the block's bytes, and the
# numbers of its rows.
_SET_AGAIN = """
redis.call('SET', KEYS[1], ARGV[1])
for i = 2, #ARGV do redis.call('HDEL', KEYS[2], ARGV[i]) end
return 1
"""

# A callback for a push's progress. Its arguments are the name of the step, the bytes done, and all bytes.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of pushing one table. written, removed: numbers of blocks that this command wrote, and removed."""

    table: str
    fingerprint: str
    blocks: int
    written: int
    removed: int


def push(
    artifact: Path,
    address: StoreAddress,
    *,
    model: str | None = None,
    tables: Sequence[str] = (),
    keep: int = 2,
    max_mb_per_s: float = 0.0,
    progress: Progress = lambda step, done, total: None,
) -> list[Pushed]:
    """Writes tables of a version folder into a Redis cluster; removes the blocks of all but the newest `keep` versions.

    Args:
      model: as the server names it; None: the name of the folder that the version lies in.
      tables: names; none for all.
      keep: fingerprints that stay, the new one included: servers that have not loaded it read the one before.
      max_mb_per_s: most megabytes (10^6 bytes) a second that are written, and that are read back; 0: no limit.

    Raises:
      ExportError: the folder, its checksums or the cluster are not as they should be.
    """
    manifest = check_described(artifact)
    for name in tables:
        if name not in manifest.tables:
            raise ExportError(f"{artifact} has no table {name!r}{did_you_mean(name, list(manifest.tables))}")
    name = artifact.absolute().parent.name if model is None else model
    pace = _Pace(max_mb_per_s * 1e6)
    try:
        with store_client(address, _TIMEOUT_S) as client:
            _refuse_eviction(client, address)
            return [
                _Table(client, artifact, name, table, manifest.tables[table], pace, progress).push(keep)
                for table in tables or manifest.tables
            ]
    except redis.RedisError as error:
        raise ExportError(f"{address}: {error}; run the command again, and it goes on where it stopped") from error
    except OSError as error:
        raise ExportError(f"{error}") from error


class _Pace:
    # Limits the rate at which a push writes: after each batch, spend() sleeps until the written bytes fit the rate.

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._due_s = time.monotonic()

    def spend(self, num_bytes: int) -> None:
        if self._bytes_per_s:
            now_s = time.monotonic()
            self._due_s = max(self._due_s, now_s) + num_bytes / self._bytes_per_s
            time.sleep(self._due_s - now_s)


class _Table:
    def __init__(
        self,
        client: Any,
        artifact: Path,
        model: str,
        table: str,
        entry: TableEntry,
        pace: _Pace,
        progress: Progress,
    ) -> None:
        self._client = client
        self._layout = TableLayout.of(model, table, fingerprint_of(artifact), entry)
        self._what = f"table {table!r}"
        self._pace = pace
        self._progress = progress
        self._is_new = True
        self._file = BlockFile(self._layout, artifact, entry)
        parts: list[TableEntry | TableScale] = [entry] if entry.scale is None else [entry, entry.scale]
        for part in parts:
            mapped = np.memmap(artifact / part.file, np.uint8, "r", part.offset, (part.nbytes,))
            if masked(crc32c_of(mapped)) != part.crc32c:
                raise ExportError(f"{self._what}: the bytes of {artifact / part.file} do not fit their checksum")

    def push(self, keep: int) -> Pushed:
        layout, client = self._layout, self._client
        found = Pointer.of(_text(client.get(layout.pointer)))
        self._is_new = is_new = layout.fingerprint not in found.fingerprints
        written = 0
        if is_new:
            begun = tuple(dict.fromkeys((*found.others, layout.fingerprint)))
            client.set(layout.pointer, Pointer(found.fingerprints, begun).text)
            client.set(layout.record, layout.record_text(is_whole=False))
        written = self._write(range(layout.num_blocks), "written")
        if wrong := self._differing():
            # Blocks of this version of the table hold other bytes in the cluster than in the file, although only
            # `model-export push` should write them: write these blocks again.
            written += self._write(wrong, "repaired", is_forced=True)
            if self._differing():
                raise ExportError(f"{self._what}: {len(wrong)} blocks do not read back as they were written")
        self._await_replicas()
        client.set(layout.record, layout.record_text(is_whole=True))
        whole = (layout.fingerprint, *(one for one in found.fingerprints if one != layout.fingerprint))
        leaving = {one for one in (*whole[keep:], *found.others) if one not in whole[:keep]}
        # Servers read the pointer in the cluster to find the table's newest data. The pointer names the new fingerprint
        # only after all blocks of this fingerprint were compared. The pointer still lists the fingerprints to remove,
        # so that a later push removes them if this push is stopped here.
        client.set(layout.pointer, Pointer(whole[:keep], tuple(sorted(leaving))).text)
        removed = sum(self._remove(fingerprint) for fingerprint in sorted(leaving))
        client.set(layout.pointer, Pointer(whole[:keep]).text)
        return Pushed(layout.table, layout.fingerprint, layout.num_blocks, written, removed)

    def _write(self, blocks: Sequence[int], step: str, *, is_forced: bool = False) -> int:
        layout, count = self._layout, 0
        for some in _batches(blocks):
            sizes = [self._size(block) for block in some]
            lengths = [-1] * len(some)
            if not is_forced:
                with self._client.pipeline(transaction=False) as pipe:
                    for block in some:
                        pipe.strlen(layout.key(block))
                    lengths = [_length(one) for one in pipe.execute(raise_on_error=False)]
            todo = [block for block, size, length in zip(some, sizes, lengths, strict=True) if size != length]
            if todo:
                self._set(todo)
                self._pace.spend(sum(map(self._size, todo)))
            count += len(todo)
            self._progress(f"{layout.table}: {step}", self._done(some), layout.nbytes)
        return count

    def _set(self, blocks: Sequence[int]) -> None:
        layout = self._layout
        if not self._is_new:
            # Servers read this version of the table already, so writing a block again undoes what upserts changed in
            # its rows. The script therefore also deletes the orders of these rows, which record their last changes.
            for block in blocks:
                keys = (layout.key(block), layout.orders(block % layout.num_shards))
                self._client.eval(_SET_AGAIN, 2, *keys, self._file.bytes_of(block), *range(*layout.rows(block)))
            return
        with self._client.pipeline(transaction=False) as pipe:
            for block in blocks:
                pipe.set(layout.key(block), self._file.bytes_of(block))
            pipe.execute()

    def _differs(self, block: int, value: bytes | None) -> bool:
        """Says whether a block in the cluster differs from the table's file in rows that no delta or upsert changed."""
        layout = self._layout
        orders = layout.orders(block % layout.num_shards)
        return self._file.fault(block, value, lambda: self._client.hkeys(orders)) != ""

    def _differing(self) -> list[int]:
        layout, found = self._layout, []
        for some in _batches(range(layout.num_blocks)):
            with self._client.pipeline(transaction=False) as pipe:
                for block in some:
                    pipe.get(layout.key(block))
                values = pipe.execute()
            found += [block for block, value in zip(some, values, strict=True) if self._differs(block, value)]
            self._pace.spend(sum(map(self._size, some)))
            self._progress(f"{layout.table}: compared", self._done(some), layout.nbytes)
        return found

    def _done(self, blocks: Sequence[int]) -> int:
        return min((blocks[-1] + 1) * self._layout.block_rows * self._layout.row_bytes, self._layout.nbytes)

    def _size(self, block: int) -> int:
        begin, end = self._layout.rows(block)
        return (end - begin) * self._layout.row_bytes

    def _await_replicas(self) -> None:
        """Waits until each replica has all data of its primary: a failover before that would lose blocks."""
        end_s = time.monotonic() + _REPLICAS_S
        wanted: dict[str, int] | None = None
        while True:
            infos = _info(self._client, "replication")
            # `wanted` keeps the primaries' replication offsets of the first loop pass, so the push does not wait until
            # the replicas have commands that other clients write later.
            wanted = wanted or {name: info["master_repl_offset"] for name, info in infos.items()}
            behind = [
                name
                for name, info in infos.items()
                for key, replica in info.items()
                if key.removeprefix("slave").isdigit() and replica["offset"] < wanted.get(name, 0)
            ]
            if not behind:
                return
            if time.monotonic() > end_s:
                raise ExportError(f"{self._what}: replicas of {', '.join(behind)} do not follow; nothing was switched")
            time.sleep(0.1)

    def _remove(self, fingerprint: str) -> int:
        record = f"{self._layout.record.partition('}')[0]}}}{fingerprint}"
        text = _text(self._client.get(record))
        old, count = None if text is None else layout_of_record(text), 0
        if old is not None:
            for some in _batches(range(old.num_blocks)):
                count += sum(self._unlink(map(old.key, some)))
                self._pace.spend(len(some) * old.block_rows * old.row_bytes)
            for some in _batches(range(old.num_shards)):
                self._unlink(map(old.orders, some))
            self._client.unlink(*map(old.note, NOTES))
        # The fingerprint's record is deleted after the fingerprint's other keys, because only the record says which
        # keys there are: an interrupted removal can go on.
        self._client.delete(record)
        return count

    def _unlink(self, keys: Iterable[str]) -> list[int]:
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.unlink(key)
            numbers: list[int] = pipe.execute()
        return numbers


def _refuse_eviction(client: Any, address: StoreAddress) -> None:
    """Raises ExportError if a node would remove rows to make room: lookups of those rows would fail."""
    for name, info in _info(client, "memory").items():
        policy = info.get("maxmemory_policy", "")
        if policy.startswith("allkeys"):
            raise ExportError(
                f"{address}: {name} has maxmemory-policy {policy}, so it would remove rows of tables when its memory "
                "is full; set maxmemory-policy noeviction on all nodes"
            )


def _info(client: Any, section: str) -> dict[str, dict[str, Any]]:
    if isinstance(client, redis.RedisCluster):
        found: dict[str, dict[str, Any]] = client.info(section, target_nodes=redis.RedisCluster.PRIMARIES)
        return found
    return {"the server": client.info(section)}


def _length(answer: Any) -> int:
    """Returns the length of a block, -1 for a key of another type, which is written again; raises other errors."""
    if isinstance(answer, redis.ResponseError) and str(answer).startswith("WRONGTYPE"):
        return -1
    if isinstance(answer, Exception):
        raise answer
    return int(answer)


def _batches(blocks: Sequence[int]) -> Iterator[Sequence[int]]:
    return (blocks[begin : begin + _BATCH] for begin in range(0, len(blocks), _BATCH))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def push_tables(arguments: argparse.Namespace) -> None:
    if arguments.keep < 1 or arguments.max_mb_per_s < 0:
        raise ExportError("--keep must be 1 or more, and --max_mb_per_s 0 or more")
    try:
        address = StoreAddress.parse(arguments.to)
    except ValueError as error:
        raise ExportError(f"--to: {error}") from error
    with tqdm(unit="B", unit_scale=True, mininterval=0.5, leave=False, disable=None, file=sys.stderr) as bar:
        # The name of the last step is stored in `shown`, because tqdm stores no description if its bar is off, as it is
        # without a terminal.
        shown = ""

        def show(step: str, done: int, total: int) -> None:
            nonlocal shown
            if shown != step:
                shown = step
                bar.reset(total=total)
                bar.set_description(step)
            bar.update(min(done, total) - bar.n)

        found = push(
            arguments.artifact,
            address,
            model=arguments.model,
            tables=arguments.table,
            keep=arguments.keep,
            max_mb_per_s=arguments.max_mb_per_s,
            progress=show,
        )
    for one in found:
        sys.stdout.write(
            f"{one.table}: {one.blocks:,} blocks, {one.written:,} of them written now, all compared; the pointer names "
            f"{one.fingerprint}; {one.removed:,} old keys removed\n"
        )
