"""Maps files that are then cut short, written to or replaced, on the real Linux and not on a double."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from service.native_tables import NATIVE_TABLES
from service.tables.guarded_files import GuardedFiles

PAGE = os.sysconf("SC_PAGESIZE")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Writes a file of three pages of ones."""
    path = tmp_path / "data"
    path.write_bytes(b"\1" * (3 * PAGE))
    return path


def opened(file: Path) -> tuple[GuardedFiles, np.ndarray]:
    """Returns the guard of a mapped file, and the file's bytes."""
    files = GuardedFiles()
    return files, np.frombuffer(files.map(file), np.uint8)


needs_guard = pytest.mark.skipif(NATIVE_TABLES is None, reason="the native core is not built")


@needs_guard
def test_what_is_cut_off_reads_as_zeros_and_is_marked(file: Path) -> None:
    files, octets = opened(file)
    assert (int(octets.sum()), files.is_damaged, files.look()) == (3 * PAGE, 0, "")
    os.truncate(file, PAGE)
    assert not files.is_damaged
    # After the first fault the whole map reads as zeros, so there is no second fault.
    assert int(octets[2 * PAGE :].sum()) == 0
    assert files.is_damaged
    assert int(octets.sum()) == 0
    assert "could not read a page" in files.look() and "data" in files.look()


@needs_guard
def test_a_damage_to_one_version_is_none_to_another(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"\2" * PAGE)
    files, octets = opened(file)
    others, its_octets = opened(other)
    os.truncate(file, 0)
    assert int(octets.sum()) == 0
    assert (files.is_damaged, others.is_damaged, int(its_octets.sum())) == (1, 0, 2 * PAGE)


def test_a_file_that_shrinks_is_seen_before_it_is_read(file: Path) -> None:
    files, _ = opened(file)
    os.truncate(file, PAGE)
    assert files.look() == f"file {file} has {PAGE} bytes since it was opened with {3 * PAGE}"
    assert files.is_damaged


def test_a_file_that_is_written_to_is_seen(file: Path) -> None:
    files, _ = opened(file)
    was = os.stat(file)
    with file.open("r+b") as handle:
        handle.write(b"\3")
    # A new time is set, because the file system's clock may be too coarse to show the write.
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns + 1))
    assert files.look() == f"file {file} was written to since it was opened"


def test_a_file_that_is_replaced_or_deleted_is_still_the_one_that_was_opened(file: Path, tmp_path: Path) -> None:
    files, octets = opened(file)
    new = tmp_path / "new"
    new.write_bytes(b"\2" * PAGE)
    new.rename(file)
    assert (files.look(), int(octets.sum())) == ("", 3 * PAGE)
    file.unlink()
    assert (files.look(), int(octets.sum())) == ("", 3 * PAGE)


def test_the_first_reason_is_the_one_that_is_told(file: Path) -> None:
    files, _ = opened(file)
    files.damaged("one")
    files.damaged("another")
    assert files.look() == "one"


def resident_kib(address: int) -> int:
    """Returns how many KiB of the map at an address this process holds in memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{address:x}-"):
            return next(int(more.split()[1]) for more in lines if more.startswith("Rss:"))
    raise AssertionError("no such map")


def num_descriptors(file: Path) -> int:
    """Counts this process's descriptors of a file; other tests' descriptors are not counted."""
    return sum(os.path.realpath(link) == os.path.realpath(file) for link in Path("/proc/self/fd").iterdir())


def test_closing_gives_the_memory_and_the_descriptors_back_and_leaves_reading_safe(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"\1" * (1 << 20))
    files, octets = opened(file)
    assert num_descriptors(file) > 0
    assert int(octets.sum()) == 1 << 20
    assert resident_kib(octets.ctypes.data) == 1024
    breaks: list[float] = []
    files.close(breaks.append)
    assert resident_kib(octets.ctypes.data) == 0
    assert len(breaks) == 1
    # After close() dropped the pages, an array that still maps the file reads them again.
    assert int(octets.sum()) == 1 << 20
    del octets
    gc.collect()
    assert num_descriptors(file) == 0


BEGIN = """
import mmap, os, signal, sys
import numpy as np
from service.tables.guarded_files import GuardedFiles
files = GuardedFiles()
octets = np.frombuffer(files.map(__import__("pathlib").Path(sys.argv[1])), np.uint8)
"""
UNGUARDED = """
with open(sys.argv[1], "rb") as file:
    other = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
os.truncate(sys.argv[1], 0)
print(octets.sum(), files.is_damaged, flush=True)
other.sum()
"""
SENT = "print(octets.sum(), flush=True)\nos.kill(os.getpid(), signal.SIGBUS)\n"


@pytest.mark.slow
@needs_guard
@pytest.mark.parametrize("options", [[], ["-X", "faulthandler"]], ids=["alone", "faulthandler"])
@pytest.mark.parametrize(
    ("script", "printed"), [(UNGUARDED, "0 True"), (SENT, str(3 * PAGE))], ids=["another-map", "sent"]
)
def test_other_bus_errors_end_the_process_as_ever(file: Path, script: str, printed: str, options: list[str]) -> None:
    # The script of "another-map" first survives a bus error in a guarded map, and then gets one in another map.
    done = subprocess.run(
        [sys.executable, *options, "-c", BEGIN + script, str(file)], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (-signal.SIGBUS, printed), done.stderr
    assert ("Fatal Python error: Bus error" in done.stderr) == bool(options)


@pytest.mark.slow
@needs_guard
def test_a_later_handler_of_crashes_leaves_the_guard(file: Path) -> None:
    script = """
from service import _native
_native.keep_last_words(-1, -1, None)
os.truncate(sys.argv[1], 0)
print(octets.sum(), files.is_damaged, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", BEGIN + script, str(file)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "0 True"), done.stderr


class Unguarded(mmap.mmap):
    """A map of the native core once its table of guarded maps is full."""

    is_guarded = False

    def __new__(cls, descriptor: int, mark: object, is_private: bool) -> Unguarded:
        """Maps a file."""
        return super().__new__(cls, descriptor, 0, access=mmap.ACCESS_READ)


class Full:
    """The native core's maps once its table of guarded maps is full."""

    Mark = SimpleNamespace
    Map = Unguarded


@pytest.mark.parametrize("core", [Full, None], ids=["full", "no-native-core"])
def test_a_map_that_finds_no_guard_is_a_map_as_any_other(
    file: Path, core: type[Full] | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("service.tables.guarded_files.NATIVE_TABLES", core)
    files = GuardedFiles()
    mapped = files.map(file)
    assert bytes(mapped)[:2] == b"\1\1"
    assert ("too many mapped files" in caplog.text) == (core is not None)
