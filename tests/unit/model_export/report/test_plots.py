"""Pictures are parsed as XML: each number is drawn, and also written as text for readers who can not see it."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from model_export.report import plots
from model_export.report.document import Curve, Projection
from model_export.statistics.table_health import Histogram

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
    assert "9 rows from 0 to 2" in root.get("aria-label", "") and "2 rows lie above 2" in root.get("aria-label", "")


def test_one_bin_of_equal_norms_is_drawn() -> None:
    (bar,) = parse(plots.norm_histogram("t", Histogram((1.0, 1.0), (4,)))).findall(f".//{NS}rect")
    assert float(bar.get("width", 0)) > 10


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
