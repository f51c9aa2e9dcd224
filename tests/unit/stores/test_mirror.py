"""A mirror lists its store at intervals, and an empty listing removes no version."""

from __future__ import annotations

import importlib.util
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.errors import ArtifactError
from service.stores.fetch import RECORD, Cache, CacheInUse, num_bytes_of
from service.stores.mirror import Mirror
from service.stores.object_store import StoreError

if importlib.util.find_spec("obstore") is None:
    pytest.skip("obstore is not installed", allow_module_level=True)


class Listing:
    """Replaces an ObjectStore: lists folders by names that a test sets."""

    uri = "s3://bucket/m"

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def folders(self) -> list[str]:
        """Lists the folders."""
        return self.names


class Clock:
    """A clock whose time a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def mirror_of(tmp_path: Path, listing: Listing, clock: Clock) -> Mirror:
    cache = Cache(tmp_path / "cache", 0)
    store: Any = listing
    return Mirror("m", store, cache.folder_of("m", "s3://bucket/m"), cache, lambda: None, 60.0, 10.0, clock)


def found(mirror: Mirror) -> set[int]:
    """Returns the versions that a mirror finds once the listing that find() may have begun is over."""
    mirror.find()
    for thread in threading.enumerate():
        if thread.name.startswith("list-"):
            thread.join()
    return set(mirror.find())


def test_the_store_is_listed_once_in_the_wait_give_or_take_a_fifth(tmp_path: Path) -> None:
    clock = Clock()
    mirror = mirror_of(tmp_path, Listing("1", "assets", "007"), clock)
    for _ in range(100):
        assert set(mirror.find()) == {1, 7}
    assert mirror.counts.listings == 1
    clock.now_s = 47.9
    found(mirror)
    assert mirror.counts.listings == 1
    clock.now_s = 72.1
    found(mirror)
    assert mirror.counts.listings == 2


def test_an_empty_listing_takes_no_version_away(tmp_path: Path) -> None:
    clock, listing = Clock(), Listing("1", "2")
    mirror = mirror_of(tmp_path, listing, clock)
    mirror.find()
    listing.names = []
    clock.now_s = 100
    assert found(mirror) == {1, 2}
    assert mirror.problem == "the store lists no versions any more; the versions before stay"
    listing.names = ["2"]
    clock.now_s = 200
    assert (found(mirror), mirror.problem) == ({2}, "")


def test_an_empty_listing_at_a_start_takes_no_fetched_version_away(tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path, Listing(), Clock())
    (mirror.folder / "3").mkdir()
    (mirror.folder / "3" / RECORD).write_text("{}")
    assert found(mirror) == {3}
    assert "lists no versions any more" in mirror.problem


def test_an_empty_place_without_fetched_versions_is_no_fault(tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path, Listing("assets"), Clock())
    assert (mirror.find(), mirror.problem) == ({}, "")
    store: Any = mirror.store
    store.folders = lambda: (_ for _ in ()).throw(StoreError(5, "off"))
    mirror.clock.now_s = 100  # type: ignore[attr-defined]
    assert (found(mirror), mirror.problem) == (set(), "off")


MIB = 1 << 20


def write(folder: Path, num_bytes: int) -> None:
    """Writes a version whose one file has this size."""
    (folder / "1").mkdir()
    (folder / "1" / "file").write_bytes(bytes(num_bytes))


def test_another_server_must_not_have_the_folder(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 0)
    with pytest.raises(CacheInUse, match="is the cache of another server"):
        Cache(tmp_path / "cache", 0)
    cache.close()
    Cache(tmp_path / "cache", 0).close()


def test_models_and_uris_have_folders_of_their_own(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 0)
    names = [cache.folder_of(*of).name for of in (("a/b", "s3://x/m"), ("a/b", "s3://y/m"), ("a_b", "s3://x/m"))]
    assert len(set(names)) == 3
    assert all(name.startswith("a_b-") for name in names)
    assert cache.folder_of("a/b", "s3://x/m").name == names[0]


def test_reservations_and_files_share_the_bound(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 10 * MIB)
    folder = cache.folder_of("m", "s3://x/m")
    write(folder, 4 * MIB)
    with cache.reserved(lambda: 4 * MIB, "version 2"):
        with pytest.raises(
            ArtifactError,
            match=r"^version 3 needs 3.0 MiB more in .*, and 2.0 MiB are left: it may have 10.0 MiB "
            r"\(--store_cache_mib\), it has 4.0 MiB, 4.0 MiB are reserved for other versions$",
        ):
            with cache.reserved(lambda: 3 * MIB, "version 3"):
                pytest.fail("there is no room")
        with cache.reserved(lambda: 2 * MIB, "version 4"):
            pass
    with cache.reserved(lambda: 6 * MIB, "version 3"):
        pass


def test_what_is_left_of_other_models_goes_when_room_is_short(tmp_path: Path) -> None:
    before = Cache(tmp_path, 0)
    gone, kept = before.folder_of("gone", "s3://x/gone"), before.folder_of("kept", "s3://x/kept")
    write(gone, 4 * MIB)
    write(kept, 4 * MIB)
    before.close()
    cache = Cache(tmp_path, 10 * MIB)
    cache.folder_of("kept", "s3://x/kept")
    with cache.reserved(lambda: MIB, "version 2"):
        assert gone.exists(), "there is room for both"
    with cache.reserved(lambda: 5 * MIB, "version 2"):
        assert not gone.exists()
    assert num_bytes_of(kept) == 4 * MIB


def test_the_disk_is_a_bound_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk(free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))

    cache = Cache(tmp_path, 0)
    disk(100 * MIB)
    # Without the 64 MiB that stay free in the text, nobody would understand why 40 MiB do not fit into 100 MiB.
    told = r"needs 40.0 MiB more in .*, and 36.0 MiB are left: its disk has 100.0 MiB free, 64.0 MiB of them stay free$"
    with pytest.raises(ArtifactError, match=told):
        with cache.reserved(lambda: 40 * MIB, "version 1"):
            pytest.fail("there is no room")
    with cache.reserved(lambda: 36 * MIB, "version 1"):
        with pytest.raises(ArtifactError, match="and 0.0 MiB are left: .*, 36.0 MiB are reserved for other versions$"):
            with cache.reserved(lambda: MIB, "version 2"):
                pytest.fail("there is no room")
