"""The server looks up a cut predict's features, and its graph starts at the found rows."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.protos import message_class
from service.core.native_servable import compile_native
from service.errors import ArtifactError, InvalidRequest
from service.graph.savedmodel import SavedModelBackend
from service.graph.tower import TowerBackend
from service.loading.loader import ServableLoader
from service.process.trial import compare_runs
from service.types import INIT_SIGNATURE, Array
from service.versions.servable import Servable
from tests.tower_zoo import SIGNATURE, ZOO, ZOO_ROWS

pytestmark = [pytest.mark.tf, pytest.mark.core]

SERVE = frozenset({"serve"})
CUT = {"serving_default", "with_extra", "keyed", "rows", "matrix", "share", "largest", "odd"}


def int64(*numbers: int) -> Array:
    """Returns an array of ids or row splits."""
    return np.array(numbers, np.int64)


def predict(servable: Servable, name: str, inputs: dict[str, Array]) -> dict[str, Array]:
    """Runs a signature in the native core, as a request does; returns its outputs."""
    assert servable.native is not None and name not in servable.not_run
    return servable.native.run(name, inputs)


@pytest.fixture(scope="module")
def cut(tower_version: Path) -> Iterator[Servable]:
    """Yields a servable of the model, whose graphs are cut where they can be."""
    servable = ServableLoader(SERVE, "auto", compile_native)("m", 1, tower_version)
    yield servable
    servable.close()


@pytest.fixture(scope="module")
def whole(tower_version: Path) -> Iterator[Servable]:
    """The tower model with whole graphs, which TensorFlow runs without cutting lookups out."""
    servable = ServableLoader(SERVE, "auto", compile_native, has_towers=False)("m", 1, tower_version)
    yield servable
    servable.close()


def test_what_can_be_cut_is(cut: Servable, whole: Servable) -> None:
    towers = {name for name, backend in cut.backends.items() if isinstance(backend, TowerBackend)}
    assert towers == CUT
    assert isinstance(cut.backends["one_of_all"], SavedModelBackend)
    assert not any(isinstance(backend, TowerBackend) for backend in whole.backends.values())


def test_why_a_graph_is_not_cut_is_logged_once(tower_version: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "service.graph.tower_opening"):
        ServableLoader(SERVE, "auto", compile_native)("m", 1, tower_version).close()
    reasons = [vars(r)["reason"] for r in caplog.records if r.getMessage() == "the whole graph is run"]
    assert len(reasons) == 1 and "reads table 'user' otherwise than row by row" in reasons[0]


def test_a_score_worked_out_by_hand(cut: Servable) -> None:
    # The request has users 3 and 0. The mean of row 0's tags is ([1, 0] + [2, 2]) / 2; row 1 has no tags.
    inputs = {"user": int64(3, 0), "tags__values": int64(0, 2), "tags__row_splits": int64(0, 2, 2)}
    # 6 + 10 * 7 + 100 * 1.5 + 1000 * 1 + 0.5, and 0 + 10 * 1 + 0.5.
    assert predict(cut, "serving_default", inputs)["score"].tolist() == [[1226.5], [10.5]]


def random_inputs(name: str, rows: int, random: np.random.Generator) -> dict[str, Array]:
    """Returns a random request of a signature with this many rows."""
    lengths = random.integers(0, 5, rows) * random.integers(0, 2, rows)
    ragged = {
        "tags__values": random.integers(0, 3, int(lengths.sum())),
        "tags__row_splits": np.concatenate([[0], np.cumsum(lengths)]),
    }
    user = {"user": random.integers(0, 4, rows)}
    return {
        "serving_default": user | ragged,
        "with_extra": user | ragged | {"extra": random.uniform(-1, 1, rows).astype(np.float32)},
        "keyed": {"names": random.choice(np.array([b"ann", b"bob", b"eve"], object), rows)},
        "matrix": {"ids": random.integers(0, 4, (rows, 3))},
        "largest": ragged,
        "odd": ragged,
    }.get(name, user)


@pytest.mark.parametrize("name", sorted(CUT))
def test_answers_are_the_whole_graphs(cut: Servable, whole: Servable, name: str) -> None:
    random = np.random.default_rng(3)
    for rows in (1, 2, 7, 64, 0):
        inputs = random_inputs(name, rows, random)
        got, wanted = predict(cut, name, inputs), predict(whole, name, inputs)
        assert got.keys() == wanted.keys()
        for output in wanted:
            # The numbers are small integers, so that a sum has the same bits in any order of adding.
            np.testing.assert_array_equal(got[output], wanted[output])
            assert got[output].dtype == wanted[output].dtype


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("rows", {"user": int64(1, 4)}),
        ("rows", {"user": int64(0, -1, 9)}),
        ("matrix", {"ids": np.array([[0, 1], [2, 7]])}),
        ("serving_default", {"user": int64(0), "tags__values": int64(0, 3), "tags__row_splits": int64(0, 2)}),
        ("serving_default", {"user": int64(0), "tags__values": int64(0), "tags__row_splits": int64(0, 2)}),
        ("serving_default", {"user": int64(0, 1), "tags__values": int64(0), "tags__row_splits": int64(0, 1)}),
        ("serving_default", {"user": int64(0)}),
        ("rows", {"user": np.array([0.5])}),
        ("rows", {"user": np.array([b"ann"], object)}),
        ("odd", {"tags__values": int64(-1), "tags__row_splits": int64(0, 1)}),
    ],
)
def test_errors_are_the_whole_graphs(cut: Servable, whole: Servable, name: str, inputs: dict[str, Array]) -> None:
    texts = []
    for servable in (cut, whole):
        with pytest.raises(InvalidRequest) as caught:
            predict(servable, name, inputs)
        # Behind TensorFlow's text, the core names the input that a whole graph may have refused.
        texts.append(caught.value.message.partition("; input ")[0])
    assert texts[0] == texts[1]


def test_what_the_graph_asserts_is_still_asserted(cut: Servable, whole: Servable) -> None:
    inputs = random_inputs("with_extra", 2, np.random.default_rng(0)) | {"extra": np.array([1, 200], np.float32)}
    for servable in (cut, whole):
        with pytest.raises(InvalidRequest, match="assertion failed"):
            predict(servable, "with_extra", inputs)


def test_strings_where_the_signature_says_otherwise(cut: Servable, whole: Servable) -> None:
    texts = []
    for servable in (cut, whole):
        with pytest.raises(InvalidRequest) as caught:
            predict(servable, "rows", {"user": np.array([b"a"], object)})
        texts.append(caught.value.message)
    assert texts[0] == texts[1] == 'Expects arg[0] to be int64 but string is provided for input "user"'


def test_some_of_the_outputs(cut: Servable) -> None:
    assert cut.native is not None
    names = {"names": np.array([b"ann", b"x"], object)}
    assert {one: array.tolist() for one, array in cut.native.run("keyed", names, ("length",)).items()} == {
        "length": [3, 1]
    }
    assert cut.native.run("keyed", names, ("rows",))["rows"].tolist() == [[4.0, 6.0], [0.0, 2.0]]


def test_tensorflow_does_not_load_the_tables(tower_version: Path, tmp_path: Path) -> None:
    """Changes a table's bytes; TensorFlow, which verifies checksums, refuses the graph only if it loads the table."""
    broken = tmp_path / "1"
    shutil.copytree(tower_version, broken)
    without_whole(broken)
    (shard,) = broken.glob("variables/variables.data-*")
    data = shard.read_bytes()
    row = np.array([6.0, 7.0], np.float32).tobytes()
    assert data.count(row) == 1
    shard.write_bytes(data.replace(row, np.array([6.0, 8.0], np.float32).tobytes()))
    with pytest.raises(ArtifactError, match="TensorFlow can not load"):
        ServableLoader(SERVE, "auto", compile_native, has_towers=False)("m", 1, broken)
    servable = ServableLoader(SERVE, "auto", compile_native)("m", 1, broken)
    assert predict(servable, "rows", {"user": int64(3)})["rows"].tolist() == [[6.0, 8.0]]
    # No request can run the signature __saved_model_init_op, so the whole graph is not opened for it.
    assert INIT_SIGNATURE in servable.signatures and INIT_SIGNATURE not in servable.backends
    servable.close()


def without_whole(folder: Path) -> None:
    """Removes from the SavedModel the signature that can not be cut."""
    path = folder / "saved_model.pb"
    saved_model = message_class("tensorflow.SavedModel")()
    saved_model.ParseFromString(path.read_bytes())
    del saved_model.meta_graphs[0].signature_def["one_of_all"]
    path.write_bytes(saved_model.SerializeToString())
    manifest = folder / "assets.extra" / "lookup_manifest.json"
    data = json.loads(manifest.read_text())
    data["files"] = {}
    manifest.write_text(json.dumps(data))


# Model of the zoo -> the number of tensors with rows that the last run of its tower was fed.
FED = {
    "dlrm": 8,
    "dlrm_matrix": 8,
    "deepfm": 12,
    "many": 1,
    "hashed": 1,
    "two_towers": 2,
    "columns": 6,
    "tags": 3,
    "stored": 5,
}
Pair = tuple[Servable, Servable]


@pytest.fixture(scope="module", params=sorted(ZOO))
def model(request: pytest.FixtureRequest, zoo_version: Callable[[str], Path]) -> Iterator[Any]:
    """Yields a model's name, and two servables of it: cut, and whole."""
    folder = zoo_version(request.param)
    serve = frozenset({"serve"})
    cut = ServableLoader(serve, "auto", compile_native)("m", 1, folder)
    whole = ServableLoader(serve, "auto", compile_native, has_towers=False)("m", 1, folder)
    yield request.param, (cut, whole)
    cut.close()
    whole.close()


def answers(pair: Pair, inputs: dict[str, Array]) -> list[dict[str, Array] | str]:
    """Returns the answers of both servables, or the texts with which they refuse."""
    found: list[dict[str, Array] | str] = []
    for servable in pair:
        assert servable.native is not None and not servable.not_run
        try:
            found.append(servable.native.run(SIGNATURE, inputs))
        except InvalidRequest as error:
            # Behind TensorFlow's text, the core names the input that a whole graph may have refused.
            found.append(error.message.partition("; input ")[0])
    return found


def test_it_is_cut_and_fed_as_little_as_can_be(model: tuple[str, Pair]) -> None:
    name, (cut, _) = model
    tower = cut.backends[SIGNATURE]
    assert isinstance(tower, TowerBackend)
    assert len(tower.cuts[SIGNATURE].fed) == FED[name]


def test_answers_are_the_whole_graphs_to_the_bit(model: tuple[str, Pair]) -> None:
    name, pair = model
    random = np.random.default_rng(1)
    for rows in (1, 2, 7, 0, 130):
        if name == "tags" and not rows:
            continue
        got, wanted = answers(pair, ZOO[name].request(rows, ZOO_ROWS, random))
        assert isinstance(got, dict) and isinstance(wanted, dict) and got.keys() == wanted.keys()
        for output, array in wanted.items():
            np.testing.assert_array_equal(got[output], array)
            assert got[output].dtype == array.dtype


def test_rows_that_do_not_fit_are_refused_in_the_graphs_words(model: tuple[str, Pair]) -> None:
    name, pair = model
    if name == "dlrm_matrix":
        pytest.skip("its ids are one input")
    inputs = ZOO[name].request(4, ZOO_ROWS, np.random.default_rng(2))
    inputs["c1"] = inputs["c1"][:3]
    got, wanted = answers(pair, inputs)
    # Two nodes of the graph of deepfm refuse the request, and TensorFlow's executor chooses the error that it returns.
    assert isinstance(got, str) and isinstance(wanted, str) and (got == wanted or name == "deepfm")


def test_an_id_without_a_row_is_refused_in_the_graphs_words(model: tuple[str, Pair]) -> None:
    name, pair = model
    inputs = ZOO[name].request(4, ZOO_ROWS, np.random.default_rng(2))
    ids = inputs["ids" if name == "dlrm_matrix" else "c1"]
    if ids.dtype == object:
        pytest.skip("its ids are in the graph")
    ids[2] = ZOO_ROWS
    got, wanted = answers(pair, inputs)
    assert isinstance(got, str) and got == wanted


def test_one_row_beside_many_is_answered_as_the_graph_does(model: tuple[str, Pair]) -> None:
    # The graph broadcasts a product of one row with many rows, but it can not concatenate tensors of one row and of
    # many.
    name, pair = model
    if name == "dlrm_matrix":
        pytest.skip("its ids are one input")
    inputs = ZOO[name].request(4, ZOO_ROWS, np.random.default_rng(2))
    inputs["c0"] = inputs["c0"][:1]
    got, wanted = answers(pair, inputs)
    assert isinstance(got, dict) == isinstance(wanted, dict) == (name == "two_towers")
    if isinstance(wanted, dict) and isinstance(got, dict):
        np.testing.assert_array_equal(got["score"], wanted["score"])
    else:
        assert got == wanted or name == "deepfm"


def test_both_are_timed_on_each_request(model: tuple[str, Pair]) -> None:
    name, (cut, whole) = model
    random = np.random.default_rng(3)
    requests = {rows: ZOO[name].request(rows, ZOO_ROWS, random) for rows in (1, 3)}
    runs = [lambda inputs, native=servable.native: native.run(SIGNATURE, inputs) for servable in (cut, whole)]
    found = compare_runs(*runs, requests, threads=2, turns=1)
    assert found.keys() == {1, 3}
    assert all(rates.ratio == rates.cut / rates.whole > 0 for rates in found.values())
