"""Runs the short form of loadtest.neighbor_recall: the told recall is near the truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from loadtest.neighbor_recall import run


def test_the_told_recall_is_near_the_truth(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    rows = 2 * random.normal(size=(100, 16))[random.integers(0, 100, 3000)] + 0.5 * random.normal(size=(3000, 16))
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    kinds = ["rows, 50 nearest excluded", "midpoints of two rows"]
    found = dict(run(tmp_path / "rows.npy", None, "l2", kinds))
    assert [*found] == [*kinds, "midpoints of two rows, among all kinds"]
    for kind, one in found.items():
        if one.told is None:
            assert one.true > 0.9
        else:
            assert one.told >= 0.95 and abs(one.true - one.told) < 0.1, kind
            assert one.scanned < 0.5
