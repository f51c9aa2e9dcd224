"""Checks the findings of a report, on artifacts with one fault each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.report.build import build_report
from model_export.report.document import STATISTICS_FOLDER, first_ids
from model_export.statistics.files import add_to_file
from model_export.statistics.table_health import Rows
from model_export.statistics.table_statistics import TableDescription, TableStatistics
from tests.toy_model import SHARD, rewrite_manifest, write_bundle


def overwrite(artifact: Path, table: str, rows: dict[int, float]) -> None:
    """Sets each of these rows of a table to one number, in the shard itself."""

    def set_rows(manifest: dict[str, Any]) -> None:
        entry = manifest["tables"][table]
        dim = entry["embedding_dim"]
        data = bytearray((artifact / SHARD).read_bytes())
        for row, value in rows.items():
            at = entry["offset"] + 4 * dim * row
            data[at : at + 4 * dim] = np.full(dim, value, np.float32).tobytes()
        (artifact / SHARD).write_bytes(data)

    rewrite_manifest(artifact, set_rows)


def test_a_whole_artifact_has_one_dead_row_in_five_which_is_said(artifact: Path) -> None:
    # Row 0 of table "user" is [0, 0], a dead row: it adds nothing to a lookup.
    assert build_report(artifact).findings == (
        "table 'user': 1 of 5 rows are all zeros and add nothing to a lookup: row 0",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: overwrite(a, "tag", {1: np.nan, 3: np.nan}), "table 'tag': 6 NaN in 2 of 4 rows: rows 1, 3"),
        (lambda a: overwrite(a, "user", {2: np.inf}), "table 'user': 2 Inf in 1 of 5 rows: row 2"),
        (
            lambda a: overwrite(a, "user", {3: 7, 4: 7}),
            "1 of 5 rows equal an earlier row bit for bit, as rows that were",
        ),
        (lambda a: (a / "assets" / "tag.txt").unlink(), "file assets/tag.txt is missing"),
        (lambda a: (a / "more").write_text(""), "file more is not in the manifest"),
        (lambda a: (a / "assets" / "tag.txt").write_text("x"), "assets/tag.txt has 1 bytes, the manifest says 15"),
        (
            lambda a: rewrite_manifest(a, lambda m: m["signatures"].update(gone=m["signatures"]["lookup"])),
            "signature 'gone' is in the manifest, but not in saved_model.pb",
        ),
        (lambda a: (a / SHARD).write_bytes(b"short"), "was not read: it ends at byte"),
    ],
)
def test_what_is_wrong_is_a_finding(artifact: Path, change: Callable[[Path], Any], message: str) -> None:
    change(artifact)
    assert [found for found in build_report(artifact).findings if message in found]


def test_an_uneven_load_is_a_finding(artifact: Path) -> None:
    seen = TableStatistics.empty(TableDescription("tag", 4, 3, "mean", ("tags",)), partitions=4)
    add_to_file(artifact / STATISTICS_FOLDER, seen.with_rows(np.array([1, 1, 1]), np.array([0, 3])))
    found = [found for found in build_report(artifact).findings if "partition strategy" in found]
    assert found == [
        f"table 'tag': with partition strategy {strategy!r} the fullest of 4 partitions gets 4.0 times the mean of them"
        for strategy in ("div", "mod")
    ]


def test_a_foreign_model_has_its_variables_read(artifact: Path) -> None:
    (artifact / "assets.extra" / "lookup_manifest.json").unlink()
    write_bundle(artifact / "variables" / "variables", {"emb": np.full((4, 2), np.nan, np.float32)})
    assert "table 'emb': 8 NaN in 4 of 4 rows: rows 0, 1, 2, 3" in build_report(artifact).findings


def test_ids_in_words() -> None:
    assert first_ids(Rows(1, (4,))) == "row 4"
    assert first_ids(Rows(12, tuple(range(10)))) == "rows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."
