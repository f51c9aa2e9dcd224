"""The core feeds cut graphs with rows of any dtype and shape, and refuses what the whole graph refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.graph.tower import TowerBackend
from service.loading.loader import ServableLoader
from service.types import Array
from service.versions.servable import Servable
from tests.native_answers import assert_same, native_answer
from tests.tower_zoo import write_tables_manifest

pytestmark = [pytest.mark.tf, pytest.mark.core]

ROWS = 5
DTYPES = ("float16", "bfloat16", "float64", "float32")


def write_model(tf: Any, version: Path) -> None:
    """Writes a model with two tables of each dtype, and signatures that read single rows of them."""
    module = tf.Module()
    random = np.random.default_rng(5)
    module.tables = {
        # With 3 columns, a row of 16-bit numbers is no multiple of four bytes.
        f"{dtype}{number}": tf.Variable(tf.cast(random.random((ROWS, 3)), dtype))
        for dtype in DTYPES
        for number in range(2)
    }
    module.kernel = tf.Variable(random.random((6, 1)), dtype=tf.float32)
    signatures = {}
    for dtype in DTYPES:
        found = _signatures(tf, module.tables[f"{dtype}0"], module.tables[f"{dtype}1"], module.kernel)
        signatures |= {f"{kind}_{dtype}": signature for kind, signature in found.items()}
    functions = {
        name: tf.function(function, input_signature=specs, autograph=False)
        for name, (function, specs) in signatures.items()
    }
    tf.saved_model.save(module, str(version), signatures=functions)
    write_tables_manifest(version)


def _signatures(tf: Any, one: Any, other: Any, kernel: Any) -> dict[str, tuple[Any, list[Any]]]:
    ids = tf.TensorSpec([None], tf.int64)

    def joined(a: Any, b: Any) -> dict[str, Any]:
        rows = tf.cast(tf.concat([tf.gather(one, a), tf.gather(other, b)], 1), tf.float32)
        return {"score": tf.matmul(rows, kernel)}

    def added(a: Any, b: Any) -> dict[str, Any]:
        return {"sum": tf.cast(tf.gather(one, a) + tf.gather(other, b), tf.float32)}

    def any_rank(a: Any) -> dict[str, Any]:
        return {"sum": tf.cast(tf.reduce_sum(tf.gather(one, a), -1), tf.float32)}

    def parsed(a: Any) -> dict[str, Any]:
        found = tf.gather(one, tf.strings.to_number(a, tf.int64))
        return {"sum": tf.cast(tf.reduce_sum(found, -1), tf.float32)}

    return {
        "joined": (joined, [ids, ids]),
        "added": (added, [ids, ids]),
        "any_rank": (any_rank, [tf.TensorSpec(None, tf.int64)]),
        "parsed": (parsed, [tf.TensorSpec([None, None], tf.string)]),
    }


@pytest.fixture(scope="module")
def servables(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servable, Servable]]:
    """The model with its lookups cut out, compiled for the core; and as a whole graph."""
    from service.core.native_servable import compile_native

    version = tmp_path_factory.mktemp("cut") / "1"
    write_model(tf, version)
    serve = frozenset({"serve"})
    pair = (
        ServableLoader(serve, "auto", compile_native)("m", 1, version),
        ServableLoader(serve, "auto", compile_native, has_towers=False)("m", 1, version),
    )
    yield pair
    for servable in pair:
        servable.close()


def strings(*rows: list[str]) -> Array:
    """Returns a matrix of byte strings."""
    return np.array([[text.encode() for text in row] for row in rows], object)


ANSWERED: dict[str, tuple[str, dict[str, Array]]] = {
    "joined": ("joined", {"a": np.array([3, 0, 4]), "b": np.array([1, 1, 2])}),
    "no rows": ("joined", {"a": np.array([], np.int64), "b": np.array([], np.int64)}),
    "rows that are broadcast": ("added", {"a": np.array([3]), "b": np.array([1, 1, 2])}),
    "rank 0": ("any_rank", {"a": np.array(3)}),
    "rank 1": ("any_rank", {"a": np.array([3, 4])}),
    "rank 3": ("any_rank", {"a": np.array([[[3, 4], [0, 1]]])}),
    "computed ids": ("parsed", {"a": strings(["3", "0"], ["4", "4"])}),
}
REFUSED: dict[str, tuple[str, dict[str, Array], str]] = {
    "rows that differ": ("joined", {"a": np.array([3, 0, 4]), "b": np.array([1, 1])}, "Dimension"),
    "rows that can not be broadcast": ("added", {"a": np.array([3, 0, 4]), "b": np.array([1, 1])}, "Incompatible"),
    "an id of the request without a row": (
        "joined",
        {"a": np.array([3, 7]), "b": np.array([1, 1])},
        r"indices[1] = 7 is not in [0, 5); input \"a\": has 7 at position 1.",
    ),
    "a computed id without a row": ("parsed", {"a": strings(["3", "7"], ["-1", "4"])}, "indices[0,1] = 7 is not in"),
    "a key that is no number": (
        "parsed",
        {"a": strings(["x"])},
        "StringToNumberOp could not correctly convert string: x",
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("request_of", list(ANSWERED))
def test_a_cut_graph_answers_as_the_whole_graph(
    servables: tuple[Servable, Servable], dtype: str, request_of: str
) -> None:
    kind, inputs = ANSWERED[request_of]
    name = f"{kind}_{dtype}"
    cut, whole = servables
    assert isinstance(cut.backends[name], TowerBackend) and not cut.not_run
    assert not isinstance(whole.backends[name], TowerBackend)
    assert_same(native_answer(cut, name, inputs), native_answer(whole, name, inputs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("request_of", list(REFUSED))
def test_a_cut_graph_refuses_as_the_whole_graph(
    servables: tuple[Servable, Servable], dtype: str, request_of: str
) -> None:
    kind, inputs, text = REFUSED[request_of]
    name = f"{kind}_{dtype}"
    for servable in servables:
        with pytest.raises(ValueError, match=re.escape(text)):
            native_answer(servable, name, inputs)


def test_more_sets_of_outputs_than_the_core_keeps_are_answered(tf: Any, tmp_path: Path) -> None:
    from service import _native
    from service.core.native_servable import compile_native

    count = 8
    module = tf.Module()
    x = tf.TensorSpec([None], tf.float32, "x")
    function = tf.function(lambda x: {f"y{i}": x + i for i in range(count)}, input_signature=[x], autograph=False)
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": function})
    loader = ServableLoader(frozenset({"serve"}), "auto", compile_native)
    servable = loader("m", 1, tmp_path / "1")
    assert servable.native is not None
    sent = [("x", 1, [1], np.array([2], np.float32).tobytes())]
    for chosen in range(1, 2**count):
        names = [f"y{i}" for i in reversed(range(count)) if chosen >> i & 1]
        found = _native.predict(servable.native.compiled, "serving_default", sent, names)
        assert [np.frombuffer(data, np.float32).tolist() for _, _, data in found] == [
            [2.0 + int(name[1:])] for name in names
        ]
    servable.close()
