"""Fetches versions from a store: only complete and safe ones, no bytes twice, and changed objects again."""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from service.artifact.manifest import MANIFEST_PATH
from service.errors import ArtifactError, NotReady
from tests.toy_model import write_toy_model

if importlib.util.find_spec("obstore") is None:
    pytest.skip("obstore is not installed", allow_module_level=True)

import service.stores.fetch as fetch_module
from service.stores.fetch import PROGRESS, RECORD, Cache, Fetch, Outcome, bring_deltas, read_record
from service.stores.object_store import StoredObject, StoreError

if TYPE_CHECKING:
    from service.stores.object_store import ObjectStore


class Bucket:
    """Objects of version 1 in a dict, in place of an ObjectStore; reads: the paths that were read."""

    uri = "s3://bucket/m"
    has_tags = True

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.contents = objects
        self.reads: list[str] = []
        # Path of an object -> number of its bytes that can be read; a read that goes beyond them fails.
        self.readable: dict[str, int] = {}

    def objects(self, folder: str) -> list[StoredObject]:
        """Lists the version's objects, or those of its deltas; an object's tag is the hash of its content."""
        contents = sorted(self.contents.items())
        found = [StoredObject(path, len(data), str(hash(data)) * self.has_tags) for path, data in contents]
        if folder == "1/deltas":
            below = [one for one in found if one.path.startswith("deltas/")]
            return [one._replace(path=one.path.removeprefix("deltas/")) for one in below]
        assert folder == "1"
        return found

    def read(self, folder: str, one: StoredObject, begin: int, end: int) -> bytes:
        """Reads a part."""
        if begin >= self.readable.get(one.path, len(self.contents[one.path])):
            raise StoreError(5, "cut off")
        self.reads.append(one.path)
        return self.contents[one.path][begin:end]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 0)


def toy_objects(folder: Path, scale: int = 1) -> dict[str, bytes]:
    """Returns the files of a toy version by path."""
    write_toy_model(folder, scale=scale)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fetch_of(bucket: Bucket, cache: Cache, *, settled: bool = True, is_stopped: bool = False) -> Fetch:
    """Returns a Fetch of version 1 into the cache; settled: whether its objects have settled."""

    def has_settled(objects: Sequence[StoredObject]) -> bool:
        return settled

    store: Any = bucket
    found: ObjectStore = store
    return Fetch(
        found,
        "1",
        cache.folder / "1",
        cache.folder / ".fetching-1",
        cache=cache,
        has_settled=has_settled,
        is_stopped=lambda: is_stopped,
    )


def brings(fetch: Fetch) -> bool:
    """Fetches a version and puts it into place, as a mirror does; returns whether the version is there."""
    outcome = fetch.bring()
    if outcome is Outcome.STAGED:
        fetch.publish()
    return outcome is not Outcome.INCOMPLETE


def files(folder: Path) -> dict[str, bytes]:
    """Returns a fetched version's files, without the record."""
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found.pop(RECORD)
    return found


def test_a_version_is_brought_once(tmp_path: Path, cache: Cache) -> None:
    bucket = Bucket(toy_objects(tmp_path / "toy"))
    fetch = fetch_of(bucket, cache)
    assert brings(fetch)
    assert files(cache.folder / "1") == bucket.contents
    total = sum(map(len, bucket.contents.values()))
    assert (fetch.num_bytes, fetch.done_bytes, fetch.read_bytes) == (total, total, total)
    bucket.reads.clear()
    assert brings(fetch_of(bucket, cache))
    assert bucket.reads == []


PART = 1000
LARGE = "assets/large"


def partly_fetched(bucket: Bucket, cache: Cache, readable: int = 3 * PART) -> Path:
    """Fetches a version, whose large object can be read up to an offset only; returns the file of this object."""
    bucket.readable = {LARGE: readable}
    with pytest.raises(StoreError):
        brings(fetch_of(bucket, cache))
    bucket.readable = {}
    partial = cache.folder / ".fetching-1" / LARGE
    assert partial.read_bytes() == bucket.contents[LARGE][:readable]
    return partial


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Returns a bucket with a version that has, besides its files, an object of five parts."""
    monkeypatch.setattr(fetch_module, "_PART_BYTES", PART)
    return Bucket(toy_objects(tmp_path / "toy") | {LARGE: random.Random(1).randbytes(5 * PART)})


def fetched_of_large(bucket: Bucket, cache: Cache) -> int:
    """Fetches the version and compares its files; returns how many reads of the large object that took."""
    bucket.reads.clear()
    assert brings(fetch_of(bucket, cache))
    assert files(cache.folder / "1") == bucket.contents
    return bucket.reads.count(LARGE)


def test_an_attempt_continues_inside_an_object(bucket: Bucket, cache: Cache) -> None:
    partly_fetched(bucket, cache)
    assert fetched_of_large(bucket, cache) == 2
    assert MANIFEST_PATH not in bucket.reads, "complete objects are not read again"


@pytest.mark.parametrize("tail", [b"torn" * 10, b"\0" * 2 * PART, b"\0" * 9 * PART])
def test_bytes_behind_the_noted_ones_are_not_believed(bucket: Bucket, cache: Cache, tail: bytes) -> None:
    partial = partly_fetched(bucket, cache)
    with partial.open("ab") as file:
        file.write(tail)
    assert fetched_of_large(bucket, cache) == 2


@pytest.mark.parametrize("place", [0, PART, 3 * PART - 1])
def test_a_byte_that_differs_from_the_notes_costs_the_object(bucket: Bucket, cache: Cache, place: int) -> None:
    partial = partly_fetched(bucket, cache)
    data = bytearray(partial.read_bytes())
    data[place] ^= 1
    partial.write_bytes(data)
    assert fetched_of_large(bucket, cache) == 5


@pytest.mark.parametrize("size", [None, 0, 2 * PART])
def test_a_file_shorter_than_the_notes_costs_the_object(bucket: Bucket, cache: Cache, size: int | None) -> None:
    partial = partly_fetched(bucket, cache)
    if size is None:
        partial.unlink()
    else:
        os.truncate(partial, size)
    assert fetched_of_large(bucket, cache) == 5


def test_notes_that_are_lost_or_torn_cost_only_what_they_noted(bucket: Bucket, cache: Cache) -> None:
    partial = partly_fetched(bucket, cache)
    notes = partial.parents[1] / PROGRESS
    # The last line of the progress file has no end, and the next write appends its line to it.
    notes.write_bytes(notes.read_bytes()[:-5])
    assert fetched_of_large(bucket, cache) == 3


def test_an_object_that_was_replaced_is_not_continued(bucket: Bucket, cache: Cache) -> None:
    partial = partly_fetched(bucket, cache)
    older = partial.read_bytes()
    bucket.contents[LARGE] = bucket.contents[LARGE][::-1]
    # A power failure during the first attempt after the replacement: the partial file has the old object's bytes, the
    # progress file records the new object.
    partly_fetched(bucket, cache, 0).write_bytes(older)
    assert fetched_of_large(bucket, cache) == 5


def test_an_object_without_a_tag_is_not_continued(bucket: Bucket, cache: Cache) -> None:
    bucket.has_tags = False
    partly_fetched(bucket, cache)
    bucket.contents[LARGE] = bucket.contents[LARGE][::-1]
    assert fetched_of_large(bucket, cache) == 5


def test_what_changed_in_the_store_is_read_anew(tmp_path: Path, cache: Cache) -> None:
    bucket = Bucket(toy_objects(tmp_path / "toy"))
    assert brings(fetch_of(bucket, cache))
    bucket.contents = toy_objects(tmp_path / "other", scale=2)
    assert brings(fetch_of(bucket, cache))
    assert files(cache.folder / "1") == bucket.contents


def test_a_file_of_an_older_listing_is_not_gone_on_with(tmp_path: Path, cache: Cache) -> None:
    bucket = Bucket(toy_objects(tmp_path / "toy"))
    with pytest.raises(NotReady):
        brings(fetch_of(bucket, cache, is_stopped=True))
    staged = cache.folder / ".fetching-1" / "saved_model.pb"
    staged.write_bytes(b"of the older object")
    bucket.contents["saved_model.pb"] += b"\0"
    with pytest.raises(ArtifactError) as caught:
        # The manifest now states a wrong size for saved_model.pb, which is ignored here: the staged file must be
        # discarded.
        if not brings(fetch_of(bucket, cache)):
            raise ArtifactError("incomplete")
    assert caught.value.message == "incomplete"
    assert not staged.exists()


@pytest.mark.parametrize("missing", ["saved_model.pb", "variables/variables.index"])
def test_a_version_without_one_of_its_files_is_not_there_yet(tmp_path: Path, cache: Cache, missing: str) -> None:
    bucket = Bucket(toy_objects(tmp_path / "toy"))
    del bucket.contents[missing]
    assert not brings(fetch_of(bucket, cache))
    assert not (cache.folder / "1").exists()


def test_a_version_without_a_manifest_must_have_settled(tmp_path: Path, cache: Cache) -> None:
    bucket = Bucket({"saved_model.pb": b"graph", "variables/variables.index": b"index"})
    assert not brings(fetch_of(bucket, cache, settled=False))
    assert brings(fetch_of(bucket, cache))
    del bucket.contents["saved_model.pb"]
    assert not brings(fetch_of(bucket, cache))


def test_a_wrong_byte_of_a_table_is_refused_and_read_anew(tmp_path: Path, cache: Cache) -> None:
    bucket = Bucket(toy_objects(tmp_path / "toy"))
    shard = "variables/variables.data-00000-of-00001"
    right = bucket.contents[shard]
    bucket.contents[shard] = right[:-1] + bytes([right[-1] ^ 1])
    with pytest.raises(ArtifactError, match="bytes of table user in .* do not have their checksum"):
        brings(fetch_of(bucket, cache))
    assert not (cache.folder / "1").exists() and read_record(cache.folder / ".fetching-1") is None
    bucket.contents[shard] = right
    assert brings(fetch_of(bucket, cache))


def test_a_manifest_that_is_damaged_on_its_way_is_read_anew(tmp_path: Path, cache: Cache) -> None:
    bucket = Bucket(toy_objects(tmp_path / "toy"))
    right_read = bucket.read

    def damaged(folder: str, one: StoredObject, begin: int, end: int) -> bytes:
        return right_read(folder, one, begin, end)[:-1] + b"x"

    bucket.read = damaged  # type: ignore[method-assign]
    with pytest.raises(
        ArtifactError, match="^version 1 of s3://bucket/m: assets.extra/lookup_manifest.json is not valid JSON"
    ):
        brings(fetch_of(bucket, cache))
    bucket.read = right_read  # type: ignore[method-assign]
    assert brings(fetch_of(bucket, cache))
    assert files(cache.folder / "1") == bucket.contents


def test_deltas_that_come_later_are_brought_alone_and_once(tmp_path: Path, cache: Cache) -> None:
    bucket = Bucket(toy_objects(tmp_path / "toy") | {"deltas/1.delta": b"one"})
    store: Any = bucket
    assert brings(fetch_of(bucket, cache))
    bucket.reads.clear()
    bucket.contents |= {
        "deltas/2.delta": b"second",
        "deltas/x.tmp": b"no",
        "deltas/a/3.delta": b"no",
        "deltas/../4": b"no",
    }
    assert bring_deltas(store, "1", cache.folder / "1", cache) == len(b"second")
    assert bucket.reads == ["deltas/2.delta"]
    assert bring_deltas(store, "1", cache.folder / "1", cache) == 0
    assert {path.name for path in (cache.folder / "1" / "deltas").iterdir()} == {"1.delta", "2.delta"}
    # A changed delta in the store does not make a restarted server fetch the version again, but only this delta.
    bucket.contents |= {"deltas/2.delta": b"anew"}
    for name in ("deltas/x.tmp", "deltas/a/3.delta", "deltas/../4"):
        del bucket.contents[name]
    bucket.reads.clear()
    assert brings(fetch_of(bucket, cache)) and bucket.reads == []
    assert bring_deltas(store, "1", cache.folder / "1", cache) == len(b"anew")
    assert (cache.folder / "1" / "deltas" / "2.delta").read_bytes() == b"anew"
    assert bring_deltas(store, "2", cache.folder / "2", cache) == 0, "a version that is not fetched has no deltas"


@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", ".fetched.json", ".progress.jsonl", "a\0b"])
def test_an_object_can_not_name_a_file_elsewhere(cache: Cache, path: str) -> None:
    bucket = Bucket({"saved_model.pb": b"graph", path: b"evil"})
    with pytest.raises(ArtifactError, match="can not be a file of a version"):
        brings(fetch_of(bucket, cache))
    assert bucket.reads == []
