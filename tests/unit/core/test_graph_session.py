"""The core runs graphs with the reference's answers to the bit, in several threads, and with its texts for errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.signature_def import read_signatures
from service.core.native_servable import compile_native
from service.errors import InvalidRequest, ServiceError
from service.graph.library import find_core
from service.graph.savedmodel import SavedModelBackend
from service.graph.tower import TowerBackend
from service.loading.loader import ServableLoader
from service.reference.graphs import Graph
from service.reference.inputs import checked
from service.types import Array, GraphThreads
from service.versions.servable import Servable
from tests.native_answers import assert_same, native_answer
from tests.tower_zoo import SIGNATURE, ZOO, ZOO_ROWS

pytest.importorskip("service._native")
pytestmark = pytest.mark.tf

SERVE = frozenset({"serve"})


def load(folder: Path, **options: Any) -> Servable:
    """Loads a version whose graphs the native core runs."""
    return ServableLoader(SERVE, "auto", compile_native, **options)("m", 1, folder)


class Reference:
    """The whole graphs of a version in a TensorFlow session of Python's, as the reference server runs them."""

    def __init__(self, folder: Path) -> None:
        self._graph, self._specs = Graph(folder, SERVE, GraphThreads(1)), read_signatures(folder / "saved_model.pb")

    def answer(self, signature: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the outputs that the reference gives for a request."""
        spec = self._specs[signature]
        return self._graph.run(spec, checked(spec, dict(inputs), strict_shapes=False), tuple(spec.outputs))

    def close(self) -> None:
        """Closes the session."""
        self._graph.close()


Pair = tuple[Servable, Reference]


@pytest.fixture(scope="module", params=sorted(ZOO))
def zoo(request: pytest.FixtureRequest, zoo_version: Callable[[str], Path]) -> Iterator[Any]:
    """A model's name, and the model in the native core and in the reference."""
    folder = zoo_version(request.param)
    pair = load(folder), Reference(folder)
    yield request.param, pair
    for servable in pair:
        servable.close()


def test_towers_answer_to_the_bit(zoo: tuple[str, Pair]) -> None:
    name, (core, reference) = zoo
    random = np.random.default_rng(1)
    for rows in (1, 2, 7, 130):
        inputs = ZOO[name].request(rows, ZOO_ROWS, random)
        wanted = reference.answer(SIGNATURE, inputs)
        assert_same(native_answer(core, SIGNATURE, inputs), wanted)
    tower = core.backends[SIGNATURE]
    assert isinstance(tower, TowerBackend) and tower.session.number is not None


def test_an_id_without_a_row_is_refused(zoo: tuple[str, Pair]) -> None:
    name, (core, reference) = zoo
    inputs = ZOO[name].request(3, ZOO_ROWS, np.random.default_rng(2))
    key = next((key for key, array in inputs.items() if array.dtype.kind == "i"), None)
    if key is None:
        pytest.skip("the graph works out ids of strings, each of which has a row")
    inputs[key] = np.full_like(inputs[key], 2**30)
    with pytest.raises(InvalidRequest) as wanted:
        reference.answer(SIGNATURE, inputs)
    with pytest.raises(ValueError, match=re.escape(wanted.value.message)):
        native_answer(core, SIGNATURE, inputs)


@pytest.mark.parametrize("short", ["c0", "c1"])
def test_rows_that_differ_are_joined_by_the_graph(zoo: tuple[str, Pair], short: str) -> None:
    # The graph refuses to join tensors of different numbers of rows, but it broadcasts a product with one row.
    name, (core, reference) = zoo
    inputs = ZOO[name].request(4, ZOO_ROWS, np.random.default_rng(2))
    if short not in inputs:
        pytest.skip("its ids are one input")
    inputs[short] = inputs[short][: 1 if short == "c0" else 3]
    try:
        wanted = reference.answer(SIGNATURE, inputs)
    except InvalidRequest as error:
        # Two nodes of the graph of deepfm refuse the request, and TensorFlow's executor chooses the error.
        text = "" if name == "deepfm" else re.escape(error.message)
        with pytest.raises(ValueError, match=f"Fault.*{text}"):
            native_answer(core, SIGNATURE, inputs)
    else:
        assert_same(native_answer(core, SIGNATURE, inputs), wanted)


REQUESTS: dict[str, dict[str, Array]] = {
    "serving_default": {
        "user": np.array([0, 3, 1]),
        "tags__values": np.array([2, 0, 1, 1]),
        "tags__row_splits": np.array([0, 2, 2, 4]),
    },
    "with_extra": {
        "user": np.array([0, 3]),
        "tags__values": np.array([2]),
        "tags__row_splits": np.array([0, 0, 1]),
        "extra": np.array([0.25, 2], np.float32),
    },
    "keyed": {"names": np.array([b"bob", b"", b"ann"], object)},
    "rows": {"user": np.array([3, 0])},
    "matrix": {"ids": np.array([[0, 1], [2, 3], [1, 1]])},
    "one_of_all": {"user": np.array([1, 2])},
    "share": {"user": np.array([1, 2, 3])},
    "largest": {"tags__values": np.array([2, 0, 1]), "tags__row_splits": np.array([0, 2, 3])},
    "odd": {"tags__values": np.array([2, 0, 1]), "tags__row_splits": np.array([0, 2, 3])},
}


@pytest.mark.parametrize("has_towers", [True, False])
def test_signatures_of_one_model(tower_version: Path, has_towers: bool) -> None:
    core, reference = load(tower_version, has_towers=has_towers), Reference(tower_version)
    for signature, inputs in REQUESTS.items():
        wanted = reference.answer(signature, inputs)
        assert_same(native_answer(core, signature, inputs), wanted)
    core.close()
    reference.close()


def test_a_check_in_the_graph_refuses_in_the_graphs_words(tower_version: Path) -> None:
    core = load(tower_version)
    inputs = REQUESTS["with_extra"] | {"extra": np.array([0.25, 200], np.float32)}
    with pytest.raises(ValueError, match="extra is too large"):
        native_answer(core, "with_extra", inputs)
    core.close()


def whole_model(tf: Any, folder: Path) -> Path:
    """Writes a SavedModel with a vocabulary in an asset, a variable, strings, and dtypes of all sizes."""
    lines = folder / "words.txt"
    lines.write_text("red\ngreen\nblue\n")
    module = tf.Module()
    module.scale = tf.Variable([[1.5], [0.25]])
    initializer = tf.lookup.TextFileInitializer(
        str(lines), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )
    module.words = tf.lookup.StaticHashTable(initializer, -1)

    def colours(words: Any, x: Any) -> dict[str, Any]:
        return {
            "number": module.words.lookup(words),
            "product": x @ module.scale,
            "loud": tf.strings.upper(words),
            "is_known": module.words.lookup(words) >= 0,
            "half": tf.cast(x, tf.float16),
            "brain": tf.cast(x, tf.bfloat16),
            "count": tf.size(words),
        }

    def numbers(a: Any, b: Any, c: Any, d: Any) -> dict[str, Any]:
        return {"a": a + 1, "b": tf.logical_not(b), "c": tf.cast(c, tf.int32) * 2, "d": d / 2}

    def gathered(ids: Any, more: Any, age: Any) -> dict[str, Any]:
        return {"rows": tf.gather(module.scale, ids * tf.size(age, tf.int64)), "more": more}

    spec = tf.TensorSpec
    kinds = {"a": tf.int32, "b": tf.bool, "c": tf.uint8, "d": tf.float64}
    signatures = {
        "colours": (colours, [spec([None], tf.string, "words"), spec([None, 2], tf.float32, "x")]),
        "numbers": (numbers, [spec(None, dtype, name) for name, dtype in kinds.items()]),
        "gathered": (
            gathered,
            [
                spec([None, None], tf.int64, "ids"),
                spec([None], tf.int32, "more"),
                spec([None], tf.float32, "age"),
            ],
        ),
    }
    functions = {n: tf.function(f, input_signature=specs, autograph=False) for n, (f, specs) in signatures.items()}
    tf.saved_model.save(module, str(folder / "1"), signatures=functions)
    return folder / "1"


@pytest.fixture(scope="module")
def whole(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yields a SavedModel without a manifest, in the core and in the reference."""
    folder = whole_model(tf, tmp_path_factory.mktemp("whole"))
    pair = load(folder), Reference(folder)
    yield pair
    for servable in pair:
        servable.close()


WHOLE: dict[str, list[dict[str, Array]]] = {
    "colours": [
        {
            "words": np.array([b"blue", b"x" * 100, b"", b"red"], object),
            "x": np.arange(8, dtype=np.float32).reshape(4, 2),
        },
        {"words": np.array([], object), "x": np.zeros((0, 2), np.float32)},
    ],
    "numbers": [
        {
            "a": np.array([[1, -2]], np.int32),
            "b": np.array(True),
            "c": np.array([255, 0, 7], np.uint8),
            "d": np.array(0.3),
        }
    ],
}


@pytest.mark.parametrize("signature", sorted(WHOLE))
def test_whole_graphs_answer_to_the_bit(whole: Pair, signature: str) -> None:
    core, reference = whole
    for inputs in WHOLE[signature]:
        wanted = reference.answer(signature, inputs)
        assert_same(native_answer(core, signature, inputs), wanted)


def test_what_a_graph_refuses_is_refused_in_the_same_words(whole: Pair) -> None:
    inputs = {"words": np.array([b"red"], object), "x": np.zeros((1, 3), np.float32)}
    core, reference = whole
    with pytest.raises(ServiceError) as caught:
        reference.answer("colours", inputs)
    with pytest.raises(ValueError) as refused:
        native_answer(core, "colours", inputs)
    assert json.dumps(caught.value.message)[1:-1] in str(refused.value)


@pytest.mark.parametrize(
    ("ids", "more", "age", "named"),
    [
        ([[1, 8, 8]], [5], [0.0], True),
        # No input is named if several have the id, or if none has it because the graph computed it; floats are no ids.
        ([[1, 8, 8]], [8], [0.0], False),
        ([[0, 4]], [5], [8.0, 0.0], False),
    ],
)
def test_the_only_input_with_a_refused_id_is_named(
    whole: Pair, ids: list[list[int]], more: list[int], age: list[float], named: bool
) -> None:
    inputs = {"ids": np.array(ids), "more": np.array(more, np.int32), "age": np.array(age, np.float32)}
    with pytest.raises(ValueError) as caught:
        native_answer(whole[0], "gathered", inputs)
    fault = "indices[0,1] = 8 is not in [0, 2)" + ('; input "ids": has 8 at position 1.' if named else "")
    assert f"text: {json.dumps(fault)}," in str(caught.value)


def test_threads_run_side_by_side(whole: Pair) -> None:
    core, _ = whole
    random = np.random.default_rng(3)
    requests = [
        {"words": np.array([b"red"] * rows, object), "x": random.random((rows, 2), np.float32)}
        for rows in (1, 5, 64, 9)
    ]
    wanted = [native_answer(core, "colours", inputs) for inputs in requests]

    def run(number: int) -> None:
        for _ in range(25):
            assert_same(native_answer(core, "colours", requests[number]), wanted[number])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4), timeout=120))


def test_a_servable_says_which_graphs_the_core_can_not_open(
    tf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_core()
    assert found is not None
    monkeypatch.setattr("service.graph.graph_session.find_core", lambda: found._replace(library="/no/such/library"))
    servable = load(whole_model(tf, tmp_path))
    assert isinstance(servable.backends["numbers"], SavedModelBackend)
    assert servable.backends["numbers"].session is None
    assert servable.can_not_run["numbers"] == "TensorFlow's C API can not open its graph"
    with pytest.raises(ValueError, match="Unknown"):
        native_answer(servable, "numbers", WHOLE["numbers"][0])
    servable.close()


def test_a_servable_of_the_core_keeps_its_session(tf: Any, tmp_path: Path) -> None:
    servable = load(whole_model(tf, tmp_path))
    inputs = WHOLE["numbers"][0]
    wanted = native_answer(servable, "numbers", inputs)
    servable.close()
    assert_same(native_answer(servable, "numbers", inputs), wanted)
