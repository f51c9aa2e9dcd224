"""The gates of --max_drift: each of twenty planted faults of a table is refused; another training is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.comparison.document import VersionDiff
from service.comparison.versions import compare_versions
from tests.versions_to_compare import Array, random_rotation, write_version

NUM_ROWS, DIM = 2000, 16
MAX_DRIFT = 60.0


def trained(seed: int, *, mean: float = 0.0) -> Array:
    """Returns rows as a training finds them: clusters of rows, noise that differs by seed, and a rotation of its own.

    The noise is so large that a third of the rows of two seeds have a cosine below 0.3, as docs/diff.md measured.
    """
    shape = np.random.default_rng(0)
    spread = np.linspace(2, 0.6, DIM)
    centres = shape.standard_normal((60, DIM)) * spread
    rows = centres[shape.integers(0, 60, NUM_ROWS)] + 0.5 * shape.standard_normal((NUM_ROWS, DIM))
    hardly_seen = shape.random(NUM_ROWS) < 0.4
    own = np.random.default_rng(seed)
    noise = own.standard_normal((NUM_ROWS, DIM)) * np.where(hardly_seen, 2.5, 0.5)[:, None]
    found = (rows * np.where(hardly_seen, 0.3, 1.0)[:, None] + noise) @ random_rotation(seed, DIM)
    return (found + mean).astype(np.float32)


def judged(tmp_path: Path, old: Array, new: Array) -> VersionDiff:
    return compare_versions(write_version(tmp_path / "1", old), write_version(tmp_path / "2", new))


def changed(change: Callable[[Array, np.random.Generator], None]) -> Callable[[Array], Array]:
    def make(rows: Array) -> Array:
        made = rows.copy()
        change(made, np.random.default_rng(8))
        return made

    return make


def some(rows: Array, generator: np.random.Generator, share: float) -> Array:
    return generator.choice(len(rows), int(share * len(rows)), replace=False)


@changed
def _million(rows: Array, generator: np.random.Generator) -> None:
    rows[some(rows, generator, 0.01)] *= 1e6


@changed
def _nan(rows: Array, generator: np.random.Generator) -> None:
    rows[some(rows, generator, 0.01)] = np.nan


@changed
def _infinite(rows: Array, generator: np.random.Generator) -> None:
    rows[some(rows, generator, 0.01), 3] = np.inf


@changed
def _zero_rows(rows: Array, generator: np.random.Generator) -> None:
    rows[some(rows, generator, 0.02)] = 0


@changed
def _tiny_rows(rows: Array, generator: np.random.Generator) -> None:
    rows[some(rows, generator, 0.02)] *= 1e-4


@changed
def _half_of_the_columns(rows: Array, generator: np.random.Generator) -> None:
    rows[:, ::2] = 0


@changed
def _a_block_of_columns(rows: Array, generator: np.random.Generator) -> None:
    rows[:, : DIM // 2] = 1


@changed
def _copied_columns(rows: Array, generator: np.random.Generator) -> None:
    rows[:, DIM // 2 :] = rows[:, : DIM // 2]


@changed
def _one_column(rows: Array, generator: np.random.Generator) -> None:
    rows[:, 5] *= 100


FAULTS: dict[str, Callable[[Array], Array]] = {
    "permuted rows": lambda rows: rows[np.random.default_rng(3).permutation(len(rows))],
    "rows moved by one": lambda rows: np.roll(rows, 1, axis=0),
    "reversed rows": lambda rows: rows[::-1].copy(),
    "times 1000": lambda rows: rows * 1000,
    "times 0.001": lambda rows: rows * np.float32(0.001),
    "times 8": lambda rows: rows * 8,
    "1 % of the rows times 1e6": _million,
    "1 % of the rows NaN": _nan,
    "1 % of the rows with an infinity": _infinite,
    "2 % of the rows zero": _zero_rows,
    "2 % of the rows nearly zero": _tiny_rows,
    "half of the columns zero": _half_of_the_columns,
    "a block of columns constant": _a_block_of_columns,
    "columns copied over others": _copied_columns,
    "one column times 100": _one_column,
    "all rows equal": lambda rows: np.repeat(rows[:1], len(rows), 0),
    "untrained": lambda rows: np.random.default_rng(4).standard_normal(rows.shape).astype(np.float32),
    "a constant added": lambda rows: rows + np.float32(100),
    "signs lost": np.abs,
    "all zero": np.zeros_like,
}


@pytest.mark.parametrize("mean", [0.0, 10.0], ids=["around zero", "with a shared mean"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_refused(name: str, mean: float, tmp_path: Path) -> None:
    if mean and name == "signs lost":
        pytest.skip("all numbers are positive")
    old = trained(1, mean=mean)
    diff = judged(tmp_path, old, FAULTS[name](old))
    assert diff.refusals(MAX_DRIFT), diff.tables


@pytest.mark.parametrize("mean", [0.0, 10.0], ids=["around zero", "with a shared mean"])
def test_another_training_is_accepted(mean: float, tmp_path: Path) -> None:
    old = trained(1, mean=mean)
    accepted = {
        "the same": old,
        "rotated": (old @ random_rotation(5, DIM)).astype(np.float32),
        "another seed": trained(2, mean=mean),
        "another seed, larger": trained(2, mean=mean) * np.float32(2),
        "one row broken": np.where(np.arange(NUM_ROWS)[:, None] == 7, np.float32(np.nan), old),
        "a fifth of the rows trained anew": np.where(np.arange(NUM_ROWS)[:, None] % 5 == 0, old + 0.3, old),
    }
    for name, new in accepted.items():
        diff = judged(tmp_path / name.replace(" ", "-"), old, new)
        assert diff.refusals(MAX_DRIFT) == [], name
    user = next(table for table in diff.tables if table.table == "user")
    assert user.drift is not None


def test_another_seed_drifts_as_measured(tmp_path: Path) -> None:
    diff = judged(tmp_path, trained(1), trained(2))
    assert diff.drift_percent is not None and 20 < diff.drift_percent < 50


def test_there_are_twenty_faults() -> None:
    assert len(FAULTS) == 20
