"""A mirror lists its store at intervals, and an empty listing removes no version."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("obstore") is None:
    pytest.skip("obstore is not installed", allow_module_level=True)

from service.stores.fetch import RECORD, Cache
from service.stores.mirror import Mirror
from service.stores.object_store import StoreError


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
