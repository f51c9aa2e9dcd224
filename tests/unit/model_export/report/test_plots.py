"""The report's pictures: plots, projections and nearest rows."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from model_export.report import plots
from model_export.report.build import nearest_rows, searched_ids
from model_export.report.document import Curve, Projection, label_agreement, project
from model_export.report.table_files import SlicedRows
from model_export.statistics.table_health import Histogram, sample_ids

NS = "{http://www.w3.org/2000/svg}"


def parse(drawn: str) -> ElementTree.Element:
    """Parses a picture, and checks that it has a description; returns the root."""
    root = ElementTree.fromstring(drawn)
    assert root.get("role") == "img" and root.get("aria-label")
    return root


def test_bars_of_a_histogram_are_as_high_as_their_counts() -> None:
    root = parse(plots.norm_histogram("t", Histogram((0.0, 1.0, 2.0), (3, 6), above=2)))
    low, high = root.findall(f".//{NS}rect")
    assert float(high.get("height", 0)) == pytest.approx(2 * float(low.get("height", 0)), rel=1e-3)
    (bar,) = parse(plots.norm_histogram("t", Histogram((1.0, 1.0), (4,)))).findall(f".//{NS}rect")
    assert float(bar.get("width", 0)) > 10, "one bin of equal norms is drawn"
    assert "9 rows from 0 to 2" in root.get("aria-label", "") and "2 rows lie above 2" in root.get("aria-label", "")


def test_a_line_has_its_points_and_its_name() -> None:
    curves = [
        Curve("train_loss", "epoch", ((1.0, 4.0), (2.0, 2.0), (3.0, 1.0))),
        Curve("held_out_loss", "epoch", ((1.0, 3.0),)),
    ]
    root = parse(plots.line_chart(curves))
    first, second = root.findall(f".//{NS}polyline")
    assert len(first.get("points", "").split()) == 3 and len(second.get("points", "").split()) == 1
    words = [element.text for element in root.iter(f"{NS}text")]
    assert {"train_loss", "held_out_loss", "epoch"} <= set(words)
    assert "train_loss from 4 to 1" in root.get("aria-label", "")


def projection(labels: list[str | None], names: tuple[str, ...] = ()) -> Projection:
    """Returns a projection with one point per label."""
    count = len(labels)
    points = tuple((float(i), float(i % 3)) for i in range(count))
    return Projection(tuple(range(count)), points, (0.5, 0.25), tuple(labels), names, "genre")


def test_a_legend_has_the_eight_commonest_labels_and_the_rest() -> None:
    labels: list[str | None] = [f"g{i}" for i in range(10) for _ in range(12 - i)] + [None]
    root = parse(plots.scatter("t", projection(labels)))
    legend = [element.text for element in root.iter(f"{NS}text") if element.get("class") == "legend"]
    assert legend == [*(f"g{i} ({12 - i})" for i in range(8)), "other labels (8)"]
    groups = {g.get("class", "").split()[0]: len(g) for g in root.iter(f"{NS}g") if "point" in g.get("class", "")}
    assert groups == {**{f"c{i}": 12 - i for i in range(8)}, "other": 8}


def test_a_row_without_a_label_is_in_the_legend_as_such() -> None:
    root = parse(plots.scatter("t", projection(["a", None])))
    assert [e.text for e in root.iter(f"{NS}text") if e.get("class") == "legend"] == ["a (1)", "no label (1)"]


def test_points_tell_row_name_and_label_and_are_escaped() -> None:
    root = parse(plots.scatter("t", projection(["<b>", "y"], names=("<i>film</i>", ""))))
    assert sorted(t.text or "" for t in root.iter(f"{NS}title")) == ["row 0 · <i>film</i> · <b>", "row 1 · y"]


def test_one_unit_is_as_long_on_both_axes() -> None:
    root = parse(plots.scatter("t", Projection((0, 1, 2), ((0.0, 0.0), (4.0, 0.0), (0.0, 1.0)), (0.5, 0.5))))
    (origin, right, up) = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in root.iter(f"{NS}circle")]
    assert (right[0] - origin[0]) / 4 == pytest.approx(origin[1] - up[1], abs=0.2)


def test_names_that_would_cover_each_other_are_not_both_drawn() -> None:
    near = Projection((0, 1, 2), ((0.0, 0.0), (0.01, 0.0), (1.0, 1.0)), (1, 0), (), ("first", "second", "far"))
    names = [e.text for e in parse(plots.scatter("t", near)).iter(f"{NS}text") if e.get("class") == "name"]
    assert names == ["first", "far"]


def test_a_name_at_the_right_edge_stands_left_of_its_point() -> None:
    far = Projection((0, 1), ((0.0, 0.0), (1.0, 0.0)), (1, 0), (), ("left", "a long name at the edge"))
    root = parse(plots.scatter("t", far))
    (point, edge) = [float(circle.get("cx", 0)) for circle in root.iter(f"{NS}circle")]
    starts = [float(e.get("x", 0)) for e in root.iter(f"{NS}text") if e.get("class") == "name"]
    assert starts[0] > point and starts[1] < edge - 60


def test_columns_and_ranking_draw_each_value() -> None:
    bars = parse(plots.columns("c", "ids", "examples", [(1, 5), (3, 10)])).findall(f".//{NS}rect")
    assert [float(bar.get("height", 0)) for bar in bars] == pytest.approx([61, 122], abs=0.1)
    root = parse(plots.ranking("hot", [("id 7", 30), ("id 2", 10)]))
    assert [float(bar.get("width", 0)) for bar in root.iter(f"{NS}rect")] == [300, 100]
    assert root.get("aria-label") == "hot: id 7 30, id 2 10"


def test_points_are_the_centred_rows_on_the_first_two_eigenvectors() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 6)) * [5, 1, 3, 0.5, 0.2, 0.1]
    found = project(rows, np.arange(200))
    centred = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    for axis, column in enumerate((-1, -2)):
        vector = vectors[:, column]
        vector = vector * np.sign(vector[np.abs(vector).argmax()])
        np.testing.assert_allclose(np.array(found.points)[:, axis], centred @ vector, atol=1e-9)
        assert found.explained[axis] == pytest.approx(values[column] / values.sum())


def test_the_sign_does_not_hang_on_the_order_of_rows() -> None:
    rows = np.random.default_rng(1).normal(size=(50, 4))
    forward, backward = project(rows, np.arange(50)), project(rows[::-1], np.arange(50)[::-1])
    np.testing.assert_allclose(forward.points, backward.points[::-1], atol=1e-9)


@pytest.mark.parametrize(
    ("rows", "points"),
    [
        (np.ones((1, 3)), ((0.0, 0.0),)),
        (np.ones((4, 3)), ((0.0, 0.0),) * 4),
        (np.zeros((0, 3)), ()),
        # One dimension leaves the second axis at zero.
        (np.array([[1.0], [3.0]]), ((-1.0, 0.0), (1.0, 0.0))),
    ],
)
def test_axes_without_variance_are_zero(rows: np.ndarray, points: tuple[Any, ...]) -> None:
    found = project(rows, np.arange(len(rows)))
    assert found.points == points and found.explained == (float(rows.shape[1] == 1), 0.0)
    with_others = np.concatenate([rows, np.full((1, rows.shape[1]), np.nan), np.full((1, rows.shape[1]), np.inf)])
    assert project(with_others, np.arange(len(with_others))) == found, "rows that are not finite are left out"


def test_a_sample_is_of_distinct_ids_ascending_and_always_the_same() -> None:
    ids = sample_ids(10_000, seed=3, limit=50)
    assert len(set(ids.tolist())) == 50 and (np.diff(ids) > 0).all() and ids.max() < 10_000
    np.testing.assert_array_equal(ids, sample_ids(10_000, seed=3, limit=50))
    assert (ids != sample_ids(10_000, seed=4, limit=50)).any()
    np.testing.assert_array_equal(sample_ids(3, seed=3, limit=3), [0, 1, 2])


def test_a_sample_of_candidates_holds_nothing_else() -> None:
    candidates = np.arange(5, 1000, 5)
    assert set(sample_ids(1000, seed=0, candidates=candidates, limit=20).tolist()) <= set(candidates.tolist())
    np.testing.assert_array_equal(sample_ids(1000, seed=0, limit=2, candidates=np.array([7, 2])), [2, 7])


def test_agreement_of_neighbours_by_hand() -> None:
    # Rows at 0, 1, 90, 91, 92.5 and 45 degrees. The last has no label, and the one at 91 degrees another label than its
    # neighbours, so only the first two rows have a nearest row of their own label.
    angles = np.radians([0, 1, 90, 91, 92.5, 45])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    share, chance = label_agreement(rows, ["a", "a", "b", "a", "b", None]) or (0, 0)
    assert share == pytest.approx(2 / 5)
    # By chance, a row and another one have the same label with this probability: 3 rows have label a, 2 have b, so (3 *
    # 2 + 2 * 1) / (5 * 4).
    assert chance == pytest.approx(8 / 20)


def test_agreement_needs_two_labelled_rows_and_bears_zero_rows() -> None:
    assert label_agreement(np.ones((2, 2)), ["a", None]) is None
    assert label_agreement(np.zeros((2, 2)), ["a", "a"]) == (1.0, 1.0)


def plain(rows: np.ndarray, row: int, k: int) -> list[int]:
    """Returns the ids of the k rows nearest to a row; of equal cosines the smaller id comes first."""
    wide = rows.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1)
    cosines = wide @ wide[row] / np.maximum(lengths * lengths[row], 1e-300)
    cosines[row] = -np.inf
    return np.argsort(-cosines, kind="stable")[: min(k, len(rows) - 1)].tolist()


@pytest.mark.parametrize(("num_rows", "k"), [(2, 1), (7, 10), (33, 4), (5000, 10)])
def test_the_nearest_rows_are_those_of_a_plain_search(num_rows: int, k: int) -> None:
    rows = np.random.default_rng(num_rows).standard_normal((num_rows, 6)).astype(np.float32)
    ids = np.unique(np.linspace(0, num_rows - 1, 20).astype(np.int64))
    found = nearest_rows(rows, ids, k)
    assert list(found) == ids.tolist()
    for row, near in found.items():
        assert [one for one, _ in near] == plain(rows, row, k)
        for one, cosine in near:
            true = np.dot(rows[row], rows[one]) / np.linalg.norm(rows[row]) / np.linalg.norm(rows[one])
            assert cosine == pytest.approx(true, abs=1e-5)


def test_of_equal_rows_the_smaller_id_is_first_across_blocks() -> None:
    rows = np.tile(np.array([[1, 0]], np.float32), (3000, 1))
    assert [row for row, _ in nearest_rows(rows, np.array([40]), 3)[40]] == [0, 1, 2]


def test_rows_without_a_direction_have_no_neighbours() -> None:
    rows = np.array([[1, 0], [0, 0], [np.nan, 1], [np.inf, 1], [3e38, 3e38]], np.float32)
    found = nearest_rows(rows, np.arange(5), 5)
    # The length of row 4 is beyond float32, but its cosine is computed.
    assert {row: [near for near, _ in nears] for row, nears in found.items()} == {0: [4, 1], 4: [0, 1]}
    assert found[0][0][1] == pytest.approx(0.5**0.5)


def test_a_table_in_parts_is_searched_as_one() -> None:
    rows = np.random.default_rng(1).standard_normal((90, 3)).astype(np.float32)
    parts = SlicedRows([rows[:50], rows[50:]])
    assert nearest_rows(parts, np.array([10, 70]), 5) == nearest_rows(rows, np.array([10, 70]), 5)


def test_of_a_large_table_some_rows_are_searched() -> None:
    ids = np.arange(2000) * 10
    assert searched_ids(ids, (100_000, 64)) is ids
    some = searched_ids(ids, (1_000_000, 64))
    assert len(some) == 268 and set(some) <= set(ids) and (some[0], some[-1]) == (0, 19_990)
    assert len(searched_ids(ids, (1_000_000_000, 64))) == 100
