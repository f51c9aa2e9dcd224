"""Features are fed side by side where a graph does nothing else with them, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.graph.flat_graph import flatten
from service.graph.joined_rows import joined_rows
from service.graph.tower import TowerBackend
from service.loading.loader import ServableLoader
from tests.tower_model import write_tower_model

pytestmark = pytest.mark.tf

SOURCES = {"a:0", "b:0", "c:0"}


def found(
    tf: Any, build: Callable[[Any, Any, Any], Any], sources: set[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Returns what is found in a graph that begins with three sources and ends with what is built of them."""
    with tf.Graph().as_default() as graph:
        parts = [tf.compat.v1.placeholder(tf.float32, [None, 2], name) for name in "abc"]
        ends = build(*parts)
        outputs = [end.name for end in (ends if isinstance(ends, list) else [ends])]
    flat = flatten(graph.as_graph_def(), outputs)
    left = flat.ancestors(outputs, cut=frozenset(SOURCES))
    return joined_rows(flat, left, SOURCES if sources is None else sources, outputs)


@pytest.mark.parametrize("axis", [1, -1])
def test_sources_side_by_side(tf: Any, axis: int) -> None:
    three = found(tf, lambda a, b, c: tf.concat([b, c, a], axis, name="joined") * 2)
    assert three == {"joined:0": ("b:0", "c:0", "a:0")}
    two = found(tf, lambda a, b, c: [tf.concat([a, c], axis, name="joined") * 2, b * 3])
    assert two == {"joined:0": ("a:0", "c:0")}


@pytest.mark.parametrize(
    "build",
    [
        lambda tf, a, b, c: tf.concat([a, b], 0) * 2,
        lambda tf, a, b, c: tf.concat([a, b, b], 1) * 2,
        lambda tf, a, b, c: [tf.concat([a, b], 1) * 2, a * 3],
        lambda tf, a, b, c: [tf.concat([a, b], 1) * 2, tf.concat([b, c], 1) * 3],
        lambda tf, a, b, c: tf.concat([a, b], 1),
        lambda tf, a, b, c: tf.concat([a, b * 2], 1) * 2,
        lambda tf, a, b, c: tf.concat([a, b], tf.compat.v1.placeholder(tf.int32, [])) * 2,
        lambda tf, a, b, c: tf.concat([a], 1) * 2,
    ],
    ids=[
        *("below each other", "one twice", "one read elsewhere", "one in two", "an output", "one changed"),
        *("an axis that is computed", "one alone"),
    ],
)
def test_what_is_more_than_that(tf: Any, build: Callable[..., Any]) -> None:
    assert found(tf, lambda a, b, c: build(tf, a, b, c)) == {}


def test_what_something_waits_for(tf: Any) -> None:
    def build(a: Any, b: Any, c: Any) -> Any:
        joined = tf.concat([a, b], 1)
        with tf.control_dependencies([joined]):
            return [joined * 2, c * 2]

    assert found(tf, build) == {}


def test_not_all_are_sources(tf: Any) -> None:
    assert found(tf, lambda a, b, c: tf.concat([a, b], 1) * 2, {"a:0", "c:0"}) == {}


def test_a_towers_features_are_fed_together(tf: Any, tmp_path: Path) -> None:
    folder = write_tower_model(tf, tmp_path)
    servable = ServableLoader(frozenset({"serve"}), "auto", 1)("m", 1, folder)
    tower = servable.backends["serving_default"]
    assert isinstance(tower, TowerBackend)
    (joined,) = tower.cuts["serving_default"].joined.values()
    assert len(joined) == 2
    dense = tower.dense_part("serving_default")
    assert dense is not None and dense.sources == (joined,)
    apart = tower.dense_part("rows")
    assert apart is not None and [len(sources) for sources in apart.sources] == [1]
    servable.close()
