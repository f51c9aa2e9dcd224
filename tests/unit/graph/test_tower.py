"""Predictions with lookups on mapped tables equal those of the whole graph, also their errors and policies."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from service.artifact.protos import message_class
from service.engine.servable import Servable
from service.errors import ArtifactError, InvalidRequest
from service.graph.library import find_core
from service.graph.savedmodel import SavedModelBackend
from service.graph.tower import TowerBackend
from service.loading.loader import ServableLoader
from service.native.native_servable import compile_native
from service.types import INIT_SIGNATURE, Array

pytestmark = [pytest.mark.tf, pytest.mark.skipif(find_core() is None, reason="the native core is not built")]

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
    servable = ServableLoader(SERVE, "auto", 2, compile_native)("m", 1, tower_version)
    yield servable
    servable.close()


@pytest.fixture(scope="module")
def whole(tower_version: Path) -> Iterator[Servable]:
    """The tower model with whole graphs, which TensorFlow runs without cutting lookups out."""
    servable = ServableLoader(SERVE, "auto", 2, compile_native, has_towers=False)("m", 1, tower_version)
    yield servable
    servable.close()


def test_what_can_be_cut_is(cut: Servable, whole: Servable) -> None:
    towers = {name for name, backend in cut.backends.items() if isinstance(backend, TowerBackend)}
    assert towers == CUT
    assert isinstance(cut.backends["one_of_all"], SavedModelBackend)
    assert not any(isinstance(backend, TowerBackend) for backend in whole.backends.values())


def test_why_a_graph_is_not_cut_is_logged_once(tower_version: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "service.graph.tower_opening"):
        ServableLoader(SERVE, "auto", 2, compile_native)("m", 1, tower_version).close()
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
        ServableLoader(SERVE, "auto", 2, compile_native, has_towers=False)("m", 1, broken)
    servable = ServableLoader(SERVE, "auto", 2, compile_native)("m", 1, broken)
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
