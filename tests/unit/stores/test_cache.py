"""The cache folder belongs to one server, is limited in size, and loses the folders of models that are gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.errors import ArtifactError
from service.stores.fetch import Cache, CacheInUse, num_bytes_of

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
