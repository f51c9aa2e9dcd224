"""Huge pages are made during a load or beside it, before the tables are verified, as the settings say."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import numpy as np
import pytest

from service.configuration.settings_reading import read_settings
from service.core.native_servable import compile_native
from service.loading.loader import ServableLoader
from service.loading.table_pages import TablePages, TableVerification, table_pages
from service.tables import huge_pages
from service.tables.guarded_files import GuardedFiles, Verifier
from service.tables.huge_pages import HugePages, huge_bytes
from service.versions.servable import Servable
from tests.large_folios import HUGE, need_large_folios
from tests.toy_model import SHARD, toy_tables, write_toy_model

# Each test writes and reads files of several megabytes.
pytestmark = pytest.mark.slow
# Bytes in the file before the toy model's tables, so that the first table begins 8 bytes before the end of a huge page.
PADDING = 5 * HUGE - 8


def made_by(*flags: str) -> TablePages | None:
    """Returns the TablePages for which these flags ask."""
    return table_pages(read_settings(["--model_base_path=/m", *flags]), lambda _: False)


def load(path: Path, pages: TablePages | None, verification: TableVerification | None = None) -> Servable:
    """Loads a folder as version 1."""
    loader = ServableLoader(frozenset({"serve"}), "off", compile_native, pages=pages, verification=verification)
    return loader("toy", 1, path)


def octets_of(servable: Servable, path: Path) -> np.ndarray:
    """Returns the bytes of the table's shard through the servable's own map."""
    assert isinstance(servable.files, GuardedFiles)
    return np.frombuffer(servable.files.map(path / SHARD), np.uint8)


def check_rows(servable: Servable) -> None:
    """Looks every row up, and compares it with the toy's tables."""
    for name, expected in toy_tables().items():
        np.testing.assert_array_equal(servable.tables[name].rows(np.arange(len(expected))), expected)


def broken() -> GuardedFiles:
    """Returns guarded files that are already damaged."""
    files = GuardedFiles()
    files.damaged("something")
    return files


def test_settings_say_when() -> None:
    auto, huge = made_by(), made_by("--table_pages=huge")
    assert auto is not None and not auto.is_before
    assert huge is not None and huge.is_before
    assert made_by("--table_pages=normal") is None
    assert made_by("--table_pages=random") is None


def test_locked_tables_are_left_unless_they_are_made_so_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert made_by("--table_pages=huge", "--table_lock=try") is not None
    assert not caplog.records
    assert made_by("--table_lock=try") is None
    assert "--table_lock is set" in caplog.records[0].__dict__["reason"]


def test_a_model_that_is_loaded_answers_and_then_has_huge_pages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_large_folios(tmp_path)
    # No disk of a busy machine is too slow.
    monkeypatch.setattr(huge_pages, "_SLOW_S", 3600.0)
    caplog.set_level(logging.INFO)
    path = write_toy_model(tmp_path / "1", padding=PADDING)
    pages = made_by()
    assert pages is not None
    verification = TableVerification("background", Verifier(0), lambda _: False, lambda _: None)
    servable = load(path, pages, verification)
    octets = octets_of(servable, path)
    check_rows(servable)
    # The tables' pages are made one task after another, so when this task is done, the task of `servable` is done, too.
    assert pages.make("toy", GuardedFiles()).wait(60)
    assert huge_bytes(octets) == 5 * HUGE
    check_rows(servable)
    # The tables are verified only after their huge pages are made; the order of the log's records shows it.
    is_verified = threading.Event()
    verification.verifier.verify_later(broken(), [], is_verified.set)
    assert is_verified.wait(60)
    assert servable.files.is_verified
    messages = [r.message for r in caplog.records if r.message in ("huge pages", "verified tables")]
    assert messages[:2] == ["huge pages", "verified tables"]
    servable.close()
    pages.stop()


def test_a_load_may_wait_for_them(tmp_path: Path) -> None:
    need_large_folios(tmp_path)
    path = write_toy_model(tmp_path / "1", padding=PADDING)
    servable = load(path, made_by("--table_pages=huge"))
    assert huge_bytes(octets_of(servable, path)) == 5 * HUGE
    check_rows(servable)
    servable.close()


def test_verification_waits_for_pages_that_are_being_made(tmp_path: Path) -> None:
    is_going, may_end = threading.Event(), threading.Event()

    class Slow(HugePages):
        def make(self, files: GuardedFiles) -> None:
            is_going.set()
            assert may_end.wait(60)

    pages = TablePages(Slow(is_whole=False), is_before=False)
    verification = TableVerification("background", Verifier(0), lambda _: False, lambda _: None)
    servable = load(write_toy_model(tmp_path / "1"), pages, verification)
    # The version answers lookups while its huge pages are being made.
    check_rows(servable)
    assert is_going.wait(60)
    assert servable.files.is_verification_due and not servable.files.is_verified
    may_end.set()
    behind = threading.Event()
    verification.verifier.verify_later(broken(), [], behind.set)
    assert behind.wait(60)
    assert servable.files.is_verified
    servable.close()


@pytest.mark.parametrize("is_served", [False, True])
def test_a_version_that_follows_another_waits_for_its_pages(tmp_path: Path, is_served: bool) -> None:
    may_end, made = threading.Event(), []

    class Slow(HugePages):
        def make(self, files: GuardedFiles) -> None:
            made.append(may_end.wait(0.5))

    pages = TablePages(Slow(is_whole=False), is_before=False, is_served=lambda model: is_served and model == "toy")
    servable = load(write_toy_model(tmp_path / "1"), pages)
    assert bool(made) == is_served
    may_end.set()
    servable.close()


def test_what_goes_wrong_with_one_version_is_told_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(HugePages):
        def make(self, files: GuardedFiles) -> None:
            raise RuntimeError("a fault in it")

    pages = TablePages(Broken(is_whole=False), is_before=False)
    first, second = pages.make("m", GuardedFiles()), pages.make("m", GuardedFiles())
    assert first.wait(60) and second.wait(60)
    assert caplog.records[0].message == "pages could not be made huge"


def test_after_the_end_nobody_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pages = made_by("--table_pages=huge")
    assert pages is not None
    pages.stop()
    servable = load(write_toy_model(tmp_path / "1", padding=PADDING), pages)
    check_rows(servable)
    assert [r.__dict__["reason"] for r in caplog.records if r.message == "huge pages"] == ["the server stops"]
    servable.close()
