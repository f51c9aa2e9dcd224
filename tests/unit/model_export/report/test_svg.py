"""Pieces of pictures."""

from __future__ import annotations

import doctest
from xml.etree import ElementTree

import pytest

from model_export.report import page as module
from model_export.report.page import Frame, clip, escape, marker, picture, short, text, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (-0.3, 0.3, [-0.2, 0, 0.2]),
        (0.18, 0.94, [0.2, 0.4, 0.6, 0.8]),
        (1, 1, [1]),
        (0, float("inf"), [0]),
    ],
)
def test_ticks_are_round_numbers_within(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5) == expected


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.12345, "0.1235"),
        (1234, "1,234"),
        (56_000, "56k"),
        (-2e9, "-2G"),
        (1e-7, "1.0e-07"),
        (1e15, "1.0e+15"),
    ],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert short(value) == shown


def test_text_is_escaped_everywhere() -> None:
    assert escape('<a href="x">\'&\x1b') == "&lt;a href=&quot;x&quot;&gt;&#x27;&amp;\\x1b"
    evil = "<script>alert(1)</script>"
    for drawn in (text(0, 0, evil), marker(0, 1, 1, evil), picture(1, 1, f'"{evil}', "")):
        assert "<script" not in drawn


def test_a_frame_maps_values_to_pixels() -> None:
    frame = Frame(10, 110, 20, 70, (0, 4), (0, 1))
    assert (frame.px(0), frame.px(4), frame.py(0), frame.py(1), frame.px(1)) == (10, 110, 70, 20, 35)
    assert Frame(10, 110, 20, 70, (3, 3), (0, 1)).px(3) == 60


def test_every_marker_is_well_formed_and_neighbours_differ_in_shape() -> None:
    shapes = [ElementTree.fromstring(marker(index, 5, 5, "t")) for index in range(6)]
    assert [shape[0].text for shape in shapes] == ["t"] * 6
    assert len({tuple(shape.attrib.items()) for shape in shapes[:5]}) == 5
    ElementTree.fromstring(marker(0, 5, 5))


def test_long_text_is_clipped() -> None:
    assert clip("abcdef", 4) == "abc…" and clip("abcd", 4) == "abcd"


def test_the_examples_hold() -> None:
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
