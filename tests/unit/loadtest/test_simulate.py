"""Power cuts between any two calls to the disk lose nothing that was confirmed; missing fsyncs are found."""

from __future__ import annotations

import ast

import pytest

from loadtest.simulate.cases import CASES
from loadtest.simulate.mutations import mutations, plant
from loadtest.simulate.power import run_seed


# Before service/artifact/files.py was written, 33 of these seeds failed.
@pytest.mark.parametrize("seed", range(40))
def test_no_cut_loses_what_was_confirmed(seed: int) -> None:
    assert run_seed(seed).failure == ""


def test_what_a_killed_writer_could_not_sync_is_shown_only_once_it_is() -> None:
    # The writer is killed behind its failed fsync. The reader's would succeed without the record.
    assert run_seed(434, "upserts").failure == ""
    # The disk takes only the first bytes of what is written again.
    assert run_seed(1001765, "upserts").failure == ""


def test_an_object_that_comes_back_is_fetched_again() -> None:
    # Its notes say that it is complete; its file was begun anew, and the fetch was interrupted.
    assert run_seed(191, "object store").failure == ""
    # Its file was begun anew with the same bytes, and their fsync failed.
    assert run_seed(1002043, "object store").failure == ""


def test_a_seed_does_the_same_each_time() -> None:
    first, again = run_seed(5), run_seed(5)
    assert (first.case, first.cuts) == ("upserts", again.cuts)
    assert first.history == again.history


def test_each_fault_can_be_planted() -> None:
    for one in mutations():
        planted = one.planted()
        if one.path.endswith(".py"):
            ast.parse(planted, one.path)
            assert set(one.cases) <= {*CASES, "changes"}


def test_planted_faults_are_found() -> None:
    for number, one in enumerate(mutations()):
        if one.change in ("drop 1# os.fsync(self._descriptor)", "drop sync_names(path.parent)"):
            # `python -m loadtest.simulate --mutations 3000` plants all of them, each for all of its cases.
            assert plant(number, one.cases[0], num_seeds=30) is not None
