"""Files in small pages become files in huge ones, in the real page cache, and some files are left alone.

What needs a file system with large folios says so and is skipped elsewhere; who gives up does so with any.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from service.tables import huge_pages
from service.tables.guarded_files import GuardedFiles, pages_in_memory
from service.tables.huge_pages import HugePages, PageTable, huge_bytes
from tests.large_folios import HUGE, drop, need_large_folios, smaps_bytes, write_in_pieces

# Each test writes and reads files of several megabytes.
pytestmark = pytest.mark.slow
PAGE = mmap.PAGESIZE


class Opened:
    """Writes a file in small pages and maps it. expected: the file's bytes."""

    def __init__(self, folder: Path, nbytes: int, name: str = "shard") -> None:
        self.path = folder / name
        self.expected = write_in_pieces(self.path, nbytes)
        self.files = GuardedFiles()
        self.octets = np.frombuffer(self.files.map(self.path), np.uint8)


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Writes a file of twenty chunks and a part of one more, and maps it."""
    return Opened(tmp_path, 20 * HUGE + 3 * PAGE + 5)


class Table(PageTable):
    """A PageTable in which a chunk is huge from look number `huge_from` on. asked: the chunks, in order, each once."""

    def __init__(self, huge_from: int = 1_000_000) -> None:
        self.huge_from = huge_from
        self.asked: list[int] = []
        self._times = 0

    def __exit__(self, *_: object) -> None:
        """Holds nothing."""

    def huge_bytes(self, address: int, nbytes: int) -> int:
        """Says that a chunk is huge, from look number `huge_from` at it on."""
        if nbytes < HUGE:
            return 0
        assert nbytes == HUGE
        if self.asked[-1:] != [address]:
            self.asked.append(address)
            self._times = 0
        self._times += 1
        return HUGE if self._times >= self.huge_from else 0


class Clock:
    """A clock that goes on by a tick at each look at it, and by each sleep."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.tick_s = tick_s
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture(autouse=True)
def all_records(caplog: pytest.LogCaptureFixture) -> None:
    """Makes caplog keep records of level INFO, too."""
    caplog.set_level(logging.INFO)


def told(caplog: pytest.LogCaptureFixture) -> tuple[int, int, str]:
    """Returns the fields `bytes`, `of` and `reason` of the only log record."""
    (record,) = caplog.records
    assert record.message == "huge pages"
    found = record.__dict__
    return found["bytes"], found["of"], found.get("reason", "")


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("is_read", [False, True], ids=["as written", "and read"])
def test_small_pages_become_huge_and_hold_the_same(
    tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture, is_whole: bool, is_read: bool
) -> None:
    need_large_folios(tmp_path)
    if is_read:
        np.testing.assert_array_equal(opened.octets, opened.expected)
    assert smaps_bytes(opened.octets, "FilePmdMapped") == 0
    HugePages(is_whole=is_whole, clock=still).make(opened.files)
    # Bytes of the file after the last whole chunk are not made a huge page.
    assert smaps_bytes(opened.octets, "FilePmdMapped") == huge_bytes(opened.octets) == 20 * HUGE
    assert told(caplog) == (20 * HUGE, opened.octets.size, "")
    np.testing.assert_array_equal(opened.octets, opened.expected)
    assert smaps_bytes(opened.octets, "Anonymous") == 0


def test_what_is_huge_already_is_left_as_it_is(
    tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_large_folios(tmp_path)
    HugePages(is_whole=True).make(opened.files)
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: pytest.fail("dropped") if arguments[3] == 4 else None)
    # A second map of the file, as another process has: no page is read through it yet.
    another = GuardedFiles()
    octets = np.frombuffer(another.map(opened.path), np.uint8)
    caplog.clear()
    HugePages(is_whole=False, clock=still).make(another)
    assert told(caplog)[0] == huge_bytes(octets) == 20 * HUGE


def test_lookups_beside_it_read_what_is_there(tmp_path: Path, opened: Opened) -> None:
    need_large_folios(tmp_path)
    is_done, num_wrong, num_looked = threading.Event(), 0, 0
    # The thread reads once before the huge pages are made, and then until they are all made.
    has_begun = threading.Event()

    def look_up() -> None:
        nonlocal num_wrong, num_looked
        rng = np.random.default_rng(1)
        while not is_done.is_set():
            places = rng.integers(0, opened.octets.size, 4096)
            num_wrong += int((opened.octets[places] != opened.expected[places]).sum())
            num_looked += 1
            has_begun.set()

    thread = threading.Thread(target=look_up)
    thread.start()
    assert has_begun.wait(60)
    HugePages(is_whole=True).make(opened.files)
    is_done.set()
    thread.join()
    assert num_looked and not num_wrong
    np.testing.assert_array_equal(opened.octets, opened.expected)


def still() -> float:
    """Returns the time of a clock that stands still: no disk is too slow for huge pages."""
    return 0.0


def test_what_is_not_in_memory_is_advised_and_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_large_folios(tmp_path)
    monkeypatch.setattr(huge_pages, "_TRIAL", 4)
    # The file's pages are dropped from the page cache, so a page is in memory only after it is read again.
    path = tmp_path / "shard"
    expected = write_in_pieces(path, 20 * HUGE)
    drop(path)
    files = GuardedFiles()
    octets = np.frombuffer(files.map(path), np.uint8)
    # The pause lets the kernel finish its read-ahead; pages that it read ahead must not make the next chunk look
    # wanted.
    HugePages(is_whole=False, clock=still, sleep=lambda _: time.sleep(0.02)).make(files)
    assert told(caplog) == (4 * HUGE, 20 * HUGE, "")
    assert caplog.records[0].__dict__["advised"] == 16 * HUGE
    # The kernel reads some chunks ahead, but not the second half of the file.
    assert not pages_in_memory(octets.ctypes.data + 10 * HUGE, 10 * HUGE).any()
    assert octets[15 * HUGE + 7] == expected[15 * HUGE + 7]
    assert huge_bytes(octets[15 * HUGE : 16 * HUGE]) == HUGE
    # is_whole=True also reads and makes huge the chunks that were not in memory.
    HugePages(is_whole=True).make(files)
    if huge_bytes(octets) < 20 * HUGE:
        # Skips the test if the kernel has too few huge pages left, because memory is full.
        need_large_folios(tmp_path)
    assert huge_bytes(octets) == 20 * HUGE


def test_rows_that_were_changed_in_a_private_map_stay_changed(tmp_path: Path, opened: Opened) -> None:
    def changed() -> np.ndarray:
        with opened.path.open("rb") as file:
            return np.frombuffer(opened.files.map_privately(file.fileno()), np.uint8)

    # One delta is written before the huge pages are made, into a part of a chunk whose other pages are only read, and
    # one after.
    before = changed()
    before[HUGE + 5 : HUGE + 300] = 7
    expected = opened.expected.copy()
    expected[HUGE + 5 : HUGE + 300] = 7
    np.testing.assert_array_equal(before, expected)
    HugePages(is_whole=True).make(opened.files)
    after = changed()
    np.testing.assert_array_equal(after, opened.expected)
    after[3 * HUGE + 1] ^= 255
    np.testing.assert_array_equal(before, expected)
    np.testing.assert_array_equal(opened.octets, opened.expected)
    assert np.flatnonzero(after != opened.expected).tolist() == [3 * HUGE + 1]


def test_each_file_of_a_version_is_done(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    need_large_folios(tmp_path)
    first = Opened(tmp_path, 2 * HUGE)
    write_in_pieces(tmp_path / "small", HUGE - 1)
    write_in_pieces(tmp_path / "second", 3 * HUGE + 1)
    others = [np.frombuffer(first.files.map(tmp_path / name), np.uint8) for name in ("small", "second")]
    HugePages(is_whole=False, clock=still).make(first.files)
    assert [huge_bytes(octets) for octets in (first.octets, *others)] == [2 * HUGE, 0, 3 * HUGE]
    assert told(caplog) == (5 * HUGE, 5 * HUGE + 1, "")


def test_a_version_of_small_files_is_no_matter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    HugePages(is_whole=True).make(Opened(tmp_path, HUGE - 1).files)
    assert not caplog.records


def test_where_the_first_do_not_become_huge_the_rest_is_left(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    HugePages(is_whole=True, page_table=lambda: table).make(opened.files)
    # A chunk begins where both the address and the offset in the file are multiples of a huge page's size.
    assert table.asked == [opened.octets.ctypes.data + chunk * HUGE for chunk in range(4)]
    assert opened.octets.ctypes.data % HUGE == 0
    assert told(caplog)[0] == 0 and "no large folios" in told(caplog)[2]
    assert caplog.records[0].levelname == "WARNING"
    np.testing.assert_array_equal(opened.octets, opened.expected)


def test_what_others_have_mapped_is_left(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    # The kernel does not drop a page from the page cache while any process has mapped it.
    others = GuardedFiles()
    octets = np.frombuffer(others.map(opened.path), np.uint8)
    np.testing.assert_array_equal(octets, opened.expected)
    HugePages(is_whole=True).make(opened.files)
    assert told(caplog)[0] == 0 and "another process has" in told(caplog)[2]
    np.testing.assert_array_equal(octets, opened.octets)


def test_one_that_does_not_become_huge_at_once_is_tried_again(
    opened: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_back: list[int] = []
    sync = huge_pages.LIBC.sync_file_range

    def spy(descriptor: int, offset: int, nbytes: int, flags: int) -> int:
        written_back.append(offset // HUGE)
        return int(sync(descriptor, offset, nbytes, flags))

    monkeypatch.setattr(huge_pages.LIBC, "sync_file_range", spy)
    # Table(huge_from=4) says that a chunk is huge at the fourth look: one look before the first attempt, one after each
    # of three.
    HugePages(is_whole=True, page_table=lambda: Table(huge_from=4)).make(opened.files)
    assert told(caplog)[0] == 20 * HUGE
    # Each of a chunk's eight parts is written back before each attempt to make it a huge page.
    assert written_back == [chunk for chunk in range(20) for _ in range(3 * 8)]


@pytest.mark.parametrize(("is_whole", "num_made"), [(False, 4), (True, 20)])
def test_a_slow_disk_is_left_alone_unless_all_of_it_is_wanted(
    opened: Opened, caplog: pytest.LogCaptureFixture, is_whole: bool, num_made: int
) -> None:
    clock = Clock(0.011)
    rules = HugePages(is_whole=is_whole, page_table=lambda: Table(huge_from=2), clock=clock, sleep=clock.sleep)
    rules.make(opened.files)
    assert told(caplog)[0] == num_made * HUGE
    assert ("11 ms" in told(caplog)[2]) != is_whole


def test_a_disk_that_is_fast_enough_is_not(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(0.009)
    HugePages(is_whole=False, page_table=lambda: Table(huge_from=2), clock=clock, sleep=clock.sleep).make(opened.files)
    assert told(caplog) == (20 * HUGE, opened.octets.size, "")


@pytest.mark.parametrize(("is_whole", "missing", "is_done"), [(False, 0, True), (False, 1, False), (True, 1, True)])
def test_files_of_more_than_half_of_the_memory_are_left(
    opened: Opened, caplog: pytest.LogCaptureFixture, is_whole: bool, missing: int, is_done: bool
) -> None:
    available = 2 * opened.octets.size - missing
    table = Table(huge_from=2)
    HugePages(is_whole=is_whole, available=lambda: available, page_table=lambda: table).make(opened.files)
    assert bool(table.asked) == is_done
    assert ("more than half" in told(caplog)[2]) != is_done


def test_it_ends_with_the_version_and_with_the_server(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    def closed_at(chunk: int) -> Table:
        class Closing(Table):
            def huge_bytes(self, address: int, nbytes: int) -> int:
                found = super().huge_bytes(address, nbytes)
                if len(self.asked) == chunk:
                    opened.files.close(lambda _: None)
                return found

        return Closing(huge_from=2)

    stopped = HugePages(is_whole=True, page_table=Table)
    stopped.stop()
    stopped.make(opened.files)
    assert told(caplog) == (0, opened.octets.size, "the server stops")
    # The level is INFO, because the operator stopped the server.
    assert caplog.records[0].levelname == "INFO"
    caplog.clear()
    HugePages(is_whole=False, page_table=lambda: closed_at(7), clock=still).make(opened.files)
    assert told(caplog) == (7 * HUGE, opened.octets.size, "the version was closed")
    # The version's files are closed, so nothing is done and logged.
    caplog.clear()
    HugePages(is_whole=False, clock=still).make(opened.files)
    assert not caplog.records
    np.testing.assert_array_equal(opened.octets, opened.expected)


def test_a_damaged_version_is_left(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    opened.files.damaged("something")
    HugePages(is_whole=False, page_table=Table, clock=still).make(opened.files)
    assert told(caplog)[2] == "a file is damaged"


def test_a_file_that_is_cut_short_meanwhile_ends_nothing(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    os.truncate(opened.path, 3 * HUGE)
    HugePages(is_whole=True).make(opened.files)
    assert [record.message for record in caplog.records] == ["huge pages"]
    np.testing.assert_array_equal(opened.octets[: 3 * HUGE], opened.expected[: 3 * HUGE])


def test_two_processes_take_turns(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    # flock() locks an open file description, so a second one in this process stands for another process.
    holder = os.open(opened.path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    table = Table(huge_from=2)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) <= 3:
            assert not table.asked
        if len(waits) == 3:
            fcntl.flock(holder, fcntl.LOCK_UN)

    HugePages(is_whole=True, page_table=lambda: table, sleep=sleep).make(opened.files)
    assert len(table.asked) == 20
    assert len([one for one in waits if one >= 0.05]) == 3
    # make() unlocked the file at its end.
    fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # If the other process never unlocks the file, the wait ends after 600 s.
    clock = Clock()
    HugePages(is_whole=True, page_table=lambda: table, clock=clock, sleep=clock.sleep).make(opened.files)
    assert 600 <= clock.now_s < 610
    os.close(holder)


def test_slow_work_tells_of_its_progress(
    opened: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_pages, "_BREAK_S", 1.0)
    clock = Clock()
    HugePages(is_whole=True, page_table=lambda: Table(huge_from=2), clock=clock, sleep=clock.sleep).make(opened.files)
    # One record after every five seconds of work, and one at the end.
    assert [record.message for record in caplog.records] == ["making huge pages"] * 3 + ["huge pages"]


def test_between_chunks_others_have_their_turn(opened: Opened) -> None:
    clock = Clock()
    HugePages(is_whole=False, page_table=lambda: Table(huge_from=2), clock=clock, sleep=clock.sleep).make(opened.files)
    # A look whether a chunk is in memory, eight parts that are written back, and the chunk.
    assert len(clock.slept) == 20 * (1 + 8 + 1) and min(clock.slept) > 0


def test_a_map_that_lies_elsewhere_than_its_file_is_left(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    class Askew(GuardedFiles):
        @contextmanager
        def reading(self, path: Path) -> Iterator[tuple[int, int]]:
            with super().reading(path) as (descriptor, address):
                yield descriptor, address + PAGE

    files = Askew()
    files.map(opened.path)
    table = Table()
    HugePages(is_whole=True, page_table=lambda: table).make(files)
    assert not table.asked and "no multiple" in told(caplog)[2]


@pytest.mark.parametrize("is_there", [False, True], ids=["no /proc", "before Linux 6.7"])
def test_a_kernel_that_does_not_tell_is_named(
    opened: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(huge_pages, "_PAGEMAP_SCAN", 3 << 30 | 96 << 16 | ord("f") << 8 | 99)

    def open_none() -> PageTable:
        raise FileNotFoundError(2, "No such file or directory", "/proc/self/pagemap")

    HugePages(is_whole=False, page_table=PageTable if is_there else open_none, clock=still).make(opened.files)
    assert ("since 6.7" if is_there else "/proc/self/pagemap") in told(caplog)[2]
    assert caplog.records[0].levelname == "INFO"
