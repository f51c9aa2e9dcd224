"""Features are fed side by side if a graph only joins them, and else one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.graph.flat_graph import flatten
from service.graph.joined_rows import joined_rows
from service.graph.tower import TowerBackend
from service.loading.loader import ServableLoader
from service.native.native_servable import compile_native

pytestmark = pytest.mark.tf

SHAPES = {"a:0": (2,), "b:0": (2,), "c:0": (1, 2), "d:0": (3, 2), "e:0": None}
Found = dict[str, tuple[str, tuple[int, ...] | None]]


def found(tf: Any, build: Callable[..., Any]) -> Found:
    """Builds a graph on five sources; returns the tensors fed to it -> the sources joined into each, and its shape."""
    with tf.Graph().as_default() as graph:
        parts = [
            tf.compat.v1.placeholder(tf.float32, None if shape is None else [None, *shape], name.partition(":")[0])
            for name, shape in SHAPES.items()
        ]
        ends = build(*parts)
        outputs = [end.name for end in (ends if isinstance(ends, list) else [ends])]
    fed = joined_rows(flatten(graph.as_graph_def(), outputs), outputs, SHAPES, outputs)
    return {name: ("".join(part[0] for part in value.parts), value.shape) for name, value in fed.items()}


@pytest.mark.parametrize("axis", [1, -1])
def test_sources_side_by_side(tf: Any, axis: int) -> None:
    three = found(tf, lambda a, b, c, d, e: tf.concat([b, tf.squeeze(c, 1), a], axis, name="joined") * 2)
    assert three == {"joined:0": ("bca", (6,))}
    two = found(tf, lambda a, b, c, d, e: [tf.concat([b, a], axis, name="joined") * 2, e * 3])
    assert two == {"joined:0": ("ba", (4,)), "e:0": ("e", None)}


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda tf, a, b, c, d: tf.stack([a, b], 1, name="x"), ("ab", (2, 2))),
        (lambda tf, a, b, c, d: tf.stack([tf.squeeze(c, 1), b], -2, name="x"), ("cb", (2, 2))),
        (lambda tf, a, b, c, d: tf.concat([c, d], 1, name="x"), ("cd", (4, 2))),
        (lambda tf, a, b, c, d: tf.concat([c, tf.expand_dims(b, 1)], -1, name="x"), ("cb", (1, 4))),
        (lambda tf, a, b, c, d: tf.reshape(d, [-1, 6], name="x"), ("d", (6,))),
        (lambda tf, a, b, c, d: tf.reshape(d, [tf.shape(d)[0], -1], name="x"), ("d", (6,))),
        (lambda tf, a, b, c, d: tf.reshape(tf.concat([a, b], 1), [-1, 2, 2], name="x"), ("ab", (2, 2))),
        (lambda tf, a, b, c, d: tf.identity(tf.concat([tf.concat([a, b], 1), a], 1)[:, :4], name="x"), None),
        (lambda tf, a, b, c, d: tf.reshape(d, [-1, 2], name="x"), None),
        (lambda tf, a, b, c, d: tf.reshape(d, [tf.shape(a)[0], -1], name="x"), None),
        (lambda tf, a, b, c, d: tf.reshape(a, [2, -1], name="x"), None),
        (lambda tf, a, b, c, d: tf.squeeze(c, name="x"), None),
        (lambda tf, a, b, c, d: tf.stack([a, b], 2, name="x"), None),
        (lambda tf, a, b, c, d: tf.stack([a, b], 0, name="x"), None),
        (lambda tf, a, b, c, d: tf.concat([d, d[:, :, :1]], 2, name="x"), None),
        (lambda tf, a, b, c, d: tf.expand_dims(a, 0, name="x"), None),
    ],
)
def test_tensors_with_the_bytes_of_sources(tf: Any, build: Callable[..., Any], wanted: Any) -> None:
    fed = found(tf, lambda a, b, c, d, e: build(tf, a, b, c, d) * 2)
    assert fed.get("x:0") == wanted


@pytest.mark.parametrize(
    "build",
    [
        lambda tf, a, b, c: tf.concat([a, b], 0) * 2,
        lambda tf, a, b, c: tf.concat([a, b, b], 1) * 2,
        lambda tf, a, b, c: [tf.concat([a, b], 1) * 2, a * 3],
        lambda tf, a, b, c: [tf.concat([a, b], 1) * 2, tf.concat([b, a], 1) * 3],
        lambda tf, a, b, c: tf.concat([a, b], 1),
        lambda tf, a, b, c: tf.concat([a, b * 2], 1) * 2,
        lambda tf, a, b, c: tf.concat([a, b], tf.compat.v1.placeholder(tf.int32, [])) * 2,
    ],
    ids=[
        *("below each other", "one twice", "one read elsewhere", "in two orders", "an output", "one changed"),
        "an axis that is computed",
    ],
)
def test_what_is_more_than_that(tf: Any, build: Callable[..., Any]) -> None:
    assert found(tf, lambda a, b, c, d, e: build(tf, a, b, c)) == {"a:0": ("a", (2,)), "b:0": ("b", (2,))}


def test_the_same_bytes_in_two_shapes(tf: Any) -> None:
    def build(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        return [tf.concat([a, b], 1, name="flat") * 2, tf.stack([a, b], 1, name="stacked") * 3]

    assert found(tf, build) == {"flat:0": ("ab", (4,)), "stacked:0": ("ab", (2, 2))}


def test_what_something_waits_for(tf: Any) -> None:
    def build(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        joined = tf.concat([a, b], 1)
        with tf.control_dependencies([joined]):
            return [joined * 2, d * 2]

    assert found(tf, build).keys() == {"a:0", "b:0", "d:0"}


def test_a_towers_features_are_fed_together(tower_version: Path) -> None:
    servable = ServableLoader(frozenset({"serve"}), "auto", 1, compile_native)("m", 1, tower_version)
    tower = servable.backends["serving_default"]
    assert isinstance(tower, TowerBackend)
    (joined,) = tower.cuts["serving_default"].fed.values()
    assert len(joined.parts) == 2
    servable.close()
