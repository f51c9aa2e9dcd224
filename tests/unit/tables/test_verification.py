"""Verifies tables by their checksums: which damage is found, at which rate, and what stays in memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from service.artifact.hashes import crc32c, masked
from service.errors import NotReady
from service.tables.guarded_files import GuardedFiles, Stored, Verifier
from tests.conftest import Clock
from tests.toy_model import masked_crc32c

MIB = 1 << 20


class Written:
    """A file of two tables that begin at an odd address, because one byte precedes them."""

    def __init__(self, folder: Path, num_bytes: int = 3 * MIB // 2) -> None:
        self.path = folder / "variables.data"
        random = np.random.default_rng(3)
        parts = [random.bytes(num_bytes), random.bytes(1000)]
        self.path.write_bytes(b"x" + b"".join(parts))
        self.stored = []
        begin = 1
        for name, data in zip("ab", parts, strict=True):
            # masked_crc32c() takes seconds for megabytes, so the long table's checksum is computed by the function that
            # test_crc32c.py checks.
            octets = np.frombuffer(data, np.uint8)
            quick = masked(int(crc32c(octets, 0)))
            crc = masked_crc32c(data) if name == "b" else quick
            self.stored.append(Stored(f"table '{name}'", self.path, begin, len(data), crc))
            begin += len(data)
        self.files = GuardedFiles()
        self.octets = np.frombuffer(self.files.map(self.path), np.uint8)

    def flip(self, at: int) -> None:
        """Changes one byte of the file, and restores the file's times, so that they do not show the change."""
        was = os.stat(self.path)
        with self.path.open("r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 4]))
        os.utime(self.path, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes tables that agree with their checksums."""
    return Written(tmp_path)


def test_tables_that_are_right_are_verified(written: Written) -> None:
    Verifier(0).verify(written.files, written.stored)
    assert (written.files.is_verified, written.files.look()) == (True, "")


@pytest.mark.parametrize("at", [1, MIB, 3 * MIB // 2, 3 * MIB // 2 + 1000])
def test_one_bit_is_enough(written: Written, at: int) -> None:
    written.flip(at)
    Verifier(0).verify(written.files, written.stored)
    assert not written.files.is_verified
    name = "b" if at > 3 * MIB // 2 else "a"
    assert f"table '{name}': bytes" in written.files.look() and "its index says" in written.files.look()


def test_a_byte_that_is_no_tables_may_be_anything(written: Written) -> None:
    written.flip(0)
    Verifier(0).verify(written.files, written.stored)
    assert written.files.is_verified


def test_a_checksum_that_was_left_out_is_none(written: Written) -> None:
    left_out = [Stored(part.what, part.file, part.offset, part.nbytes, 0) for part in written.stored]
    written.flip(5)
    Verifier(0).verify(written.files, left_out)
    assert written.files.look() == ""


def test_a_file_that_ends_early_is_damaged(written: Written) -> None:
    os.truncate(written.path, MIB + 5)
    Verifier(0).verify(written.files, written.stored)
    assert written.files.is_damaged
    assert "ends within it" in written.files.look()


def test_the_rate_is_held(written: Written, clock: Clock) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now_s += seconds

    Verifier(MIB / 4, clock=clock, sleep=sleep).verify(written.files, written.stored)
    # The table has 1.5 MiB and begins 1 byte into its file. It is read in chunks that end at multiples of 1 MiB; the
    # next table has 1,000 bytes.
    assert slept == pytest.approx([(MIB - 1) * 4 / MIB, (MIB // 2 + 1) * 4 / MIB, 4000 / MIB])


def test_reading_leaves_the_page_cache_as_it_was_and_nothing_in_this_process(tmp_path: Path) -> None:
    written = Written(tmp_path, 4 * MIB)
    os.sync()
    descriptor = os.open(written.path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    # Another reader has read one page in the third MiB of the file, so it is in the page cache.
    os.pread(descriptor, 1, 2 * MIB + MIB // 2)
    os.close(descriptor)
    before = cached(written.octets)
    if not 0 < before.sum() < before.size // 2:
        pytest.skip("this file system keeps what it was asked to let go of")
    Verifier(0).verify(written.files, written.stored)
    assert written.files.is_verified
    after = cached(written.octets)
    assert (after[before]).all()
    # The chunk of 1 MiB that has the other reader's page stays in the page cache as a whole; no other chunk does.
    (chunk,) = {page * mmap.PAGESIZE // MIB for page in np.flatnonzero(before)}
    assert {page * mmap.PAGESIZE // MIB for page in np.flatnonzero(after)} == {chunk}
    assert resident_kib(written.octets) == 0


def test_reading_fills_the_page_cache_if_the_files_fit_into_memory(tmp_path: Path) -> None:
    written = Written(tmp_path, 4 * MIB)
    os.sync()
    descriptor = os.open(written.path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    written.files.is_kept = True
    Verifier(0).verify(written.files, written.stored)
    assert written.files.is_verified and cached(written.octets).all()


def cached(octets: np.ndarray) -> np.ndarray:
    """Returns for each page of a map whether it is in the page cache."""
    pages = np.zeros(-(-octets.size // mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert libc.mincore(octets.ctypes.data, octets.size, pages.ctypes.data) == 0
    return (pages & 1).astype(bool)


def resident_kib(octets: np.ndarray) -> int:
    """Returns how many KiB of an array's map this process holds in memory."""
    text = Path("/proc/self/smaps").read_text().partition(f"{octets.ctypes.data:x}-")[2]
    return int(text.partition("Rss:")[2].split()[0])


def test_later_means_in_another_thread_and_damage_is_told(written: Written) -> None:
    written.flip(7)
    told = threading.Event()
    verifier = Verifier(0)
    verifier.verify_later(written.files, written.stored, told.set)
    assert told.wait(60)
    assert written.files.is_damaged
    verifier.stop()


def test_what_is_right_tells_nobody(written: Written) -> None:
    verified = threading.Event()
    verifier = Verifier(0)
    files = GuardedFiles()
    verifier.verify_later(written.files, written.stored, verified.set)
    # Verifications run one after another, so when the second one ends, the first one has ended.
    files.damaged("something")
    last = threading.Event()
    verifier.verify_later(files, [], last.set)
    assert last.wait(60)
    assert written.files.is_verified and not verified.is_set()
    assert not written.files.is_verification_due
    verifier.stop()


def test_an_idle_thread_keeps_nothing_of_the_files_that_it_verified() -> None:
    verifier, files, freed = Verifier(0), GuardedFiles(), threading.Event()
    weakref.finalize(files, freed.set)
    verifier.verify_later(files, [], lambda: None)
    del files
    assert freed.wait(60)
    verifier.stop()


def test_what_could_not_be_verified_stays_due(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    verifier = Verifier(0)
    unknown = [Stored("table 'c'", written.path.with_name("elsewhere"), 0, 1, 1)]
    verifier.verify_later(written.files, unknown, lambda: None)
    another = GuardedFiles()
    another.damaged("something")
    last = threading.Event()
    verifier.verify_later(another, [], last.set)
    assert last.wait(60)
    assert (written.files.is_verification_due, written.files.is_verified) == (True, False)
    assert [record.message for record in caplog.records] == ["tables could not be verified"]
    verifier.stop()


def test_it_ends_with_the_version_and_with_the_server(written: Written) -> None:
    verifier = Verifier(0)
    verifier.stop()
    with pytest.raises(NotReady):
        verifier.verify(written.files, written.stored)
    another = Written(written.path.parent)
    another.files.is_closed = True
    with pytest.raises(NotReady):
        Verifier(0).verify(another.files, another.stored)
