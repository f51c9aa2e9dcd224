"""The work of adopting and loading a model grows with the number of its features, not with the number's square."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.signature_def import SERVE_TAGS
from service.core.native_servable import compile_native
from service.graph.flat_graph import FlatGraph
from service.graph.graph_session import DenseGraph
from service.graph.tower import FeatureRows, TowerBackend
from service.loading.loader import ServableLoader
from tests.unit.model_export.late import Late, tf

pytestmark = pytest.mark.tf

adopt = Late("model_export.adoption.adopt", "adopt")

ROWS, DIM = 20, 4


def saved(folder: Path, num_features: int) -> Path:
    """Saves a model whose ragged features, each with a table of its own, have a sum or the largest numbers of rows."""
    module = tf.Module()
    rows = np.random.default_rng(3).standard_normal((num_features, ROWS, DIM)).astype(np.float32)
    module.tables = [tf.Variable(table) for table in rows]
    module.kernel = tf.Variable(np.ones((num_features * DIM, 2), np.float32))
    kinds = ("values", "splits")
    specs = {f"f{n}_{kind}": tf.TensorSpec([None], tf.int64) for n in range(num_features) for kind in kinds}

    def score(inputs: Mapping[str, Any]) -> dict[str, Any]:
        found = []
        for number, table in enumerate(module.tables):
            vectors = tf.gather(table, inputs[f"f{number}_values"])
            # TensorFlow lets each check of row splits wait for the one before it.
            ragged = tf.RaggedTensor.from_row_splits(vectors, inputs[f"f{number}_splits"], validate=number % 2 == 1)
            found.append((tf.reduce_max if number % 2 else tf.reduce_sum)(ragged, 1))
        return {"score": tf.concat(found, 1) @ module.kernel}

    function = tf.function(score, input_signature=[specs], autograph=False)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": function})
    return folder


class Work:
    """Counts the nodes of graphs that are walked, made and opened in sessions."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.nodes = 0
        walk, add, flatten = FlatGraph.walk, DenseGraph.add, FlatGraph.__init__

        def walked(flat: FlatGraph, *given: Any, **named: Any) -> Iterator[str]:
            for name in walk(flat, *given, **named):
                self.nodes += 1
                yield name

        def added(dense: DenseGraph, flat: FlatGraph, needed: set[str], *given: Any) -> None:
            self.nodes += len(needed)
            add(dense, flat, needed, *given)

        def flattened(flat: FlatGraph, nodes: dict[str, Any], *given: Any) -> None:
            self.nodes += len(nodes)
            flatten(flat, nodes, *given)

        patch.setattr(FlatGraph, "walk", walked)
        patch.setattr(DenseGraph, "add", added)
        patch.setattr(FlatGraph, "__init__", flattened)


def work(patch: pytest.MonkeyPatch, folder: Path, num_features: int) -> Iterable[int]:
    """Adopts and loads a model; yields how many nodes each of both has visited."""
    original = saved(folder / "original" / "1", num_features)
    counted = Work(patch)
    version = adopt(original, out=folder / "out", measure=False)
    yield counted.nodes
    counted = Work(patch)
    servable = ServableLoader(SERVE_TAGS, "auto", compile_native)("m", 1, version)
    yield counted.nodes
    tower = servable.backends["serving_default"]
    assert isinstance(tower, TowerBackend)
    sources = tower.cuts["serving_default"].sources.values()
    combiners = [source.claim.feature.combiner for source in sources if isinstance(source, FeatureRows)]
    # The largest numbers of rows are no lookup: the graph computes them.
    assert sorted(combiners, key=str) == [None] * (num_features // 2) + ["sum"] * (num_features // 2)
    servable.close()


def test_work_grows_with_the_number_of_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = 2, 8
    counts = []
    for number in (few, many):
        with monkeypatch.context() as patch:
            counts.append([*work(patch, tmp_path / str(number), number)])
    for least, most in zip(*counts, strict=True):
        assert most < 1.25 * many / few * least
