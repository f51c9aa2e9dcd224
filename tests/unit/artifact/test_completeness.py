"""Decides whether a version's folder is complete, with clocks that jump."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.artifact.completeness import Arrival, fingerprint
from tests.conftest import Clock


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns the folder of a version whose copy has only begun."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"half of it")
    return tmp_path / "1"


def arrival(folder: Path, clock: Clock, wall: Clock) -> Arrival:
    """Returns an Arrival of a folder that must be unchanged for 10 s; a test sets both of its clocks."""
    return Arrival(folder, 10.0, clock, wall)


@pytest.mark.parametrize("jump_s", [1e6, -1e6], ids=["ahead", "back"])
def test_a_clock_that_jumps_makes_no_half_copy_whole_and_no_whole_one_wait_longer(
    folder: Path, clock: Clock, jump_s: float
) -> None:
    wall = Clock(fingerprint(folder).changed_at_s + 1)
    watched = arrival(folder, clock, wall)
    assert not watched.is_complete()
    wall.now_s += jump_s
    clock.now_s += 5
    assert not watched.is_complete()
    (folder / "more").write_bytes(b"the other half")
    clock.now_s += 6
    assert not watched.is_complete()
    clock.now_s += 10
    assert watched.is_complete()


def test_what_lies_there_for_long_does_not_wait(folder: Path, clock: Clock) -> None:
    wall = Clock(fingerprint(folder).changed_at_s + 11)
    assert arrival(folder, clock, wall).is_complete()


def test_a_file_systems_clock_that_is_ahead_costs_the_settle_time_and_no_more(folder: Path, clock: Clock) -> None:
    wall = Clock(fingerprint(folder).changed_at_s - 1e6)
    watched = arrival(folder, clock, wall)
    assert not watched.is_complete()
    clock.now_s += 10
    assert watched.is_complete()
