"""Charts place their points between the axes, leave gaps, draw marks, and never read names as markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from loadtest.charts import Mark, Series, line_chart, stacked

SVG = "{http://www.w3.org/2000/svg}"


def lines(chart: str) -> list[list[tuple[float, float]]]:
    """Returns the points of each polyline in a chart."""
    found = re.findall(r'<polyline points="([^"]+)"', chart)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in one.split())] for one in found]


def test_points_lie_between_the_axes() -> None:
    ((first, middle, last),) = lines(line_chart("t", [Series("s", [(0, 0), (5, 50), (10, 100)])]))
    # In the picture, the axes meet at (64, 220); they are 720 units wide and 176 high.
    assert first == (64.0, 220.0)
    assert middle == (424.0, 132.0)
    assert last == (784.0, 44.0)


def test_what_is_not_finite_is_a_gap() -> None:
    points = [(0, 1.0), (1, 2.0), (2, float("nan")), (3, 2.0), (4, 1.0)]
    assert [len(line) for line in lines(line_chart("t", [Series("s", points)]))] == [2, 2]


@pytest.mark.parametrize("points", [[], [(3.0, 0.0)], [(1.0, 7.0), (1.0, 7.0)]], ids=["none", "one", "same"])
def test_few_points_are_a_picture_too(points: list[tuple[float, float]]) -> None:
    ElementTree.fromstring(line_chart("t", [Series("s", points)]))


def test_many_points_are_thinned_and_keep_the_highest() -> None:
    (points,) = lines(line_chart("t", [Series("s", [(n, 9.0 if n == 4321 else 1.0) for n in range(10000)])]))
    assert len(points) == 1000
    assert min(y for _, y in points) == pytest.approx(220 - 176 * 9 / 10)


def test_texts_are_no_markup() -> None:
    chart = line_chart("a < b", [Series("<s>", [(0, 1), (1, 2)])], marks=[Mark(0.5, "kill & swap")])
    texts = [element.text for element in ElementTree.fromstring(chart).iter(f"{SVG}text")]
    assert {"a < b", "<s>", "kill & swap"} <= set(texts)


def test_charts_stand_below_each_other() -> None:
    one = line_chart("t", [Series("s", [(0, 1), (1, 2)])])
    root = ElementTree.fromstring(stacked([one, one]))
    assert [element.get("y") for element in root.iter(f"{SVG}svg") if element is not root] == ["0", "260"]
    assert root.get("height") == "520"
