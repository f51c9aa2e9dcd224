"""Lookups of denormal numbers and of zeros of both signs are TensorFlow's, bit for bit, in every order of additions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.manifest import Manifest
from service.loading.loader import ServableLoader
from service.native.native_servable import compile_native

pytestmark = pytest.mark.tf

SMALL = [-0.0, 1e-39, -1e-39, 1.5e-38, -1.2e-38]
# Numbers of ids in the rows of a request: those at which TensorFlow's ops begin to add in another order, and others.
LENGTHS = [1, 2, 3, 8, 9, 10, 16, 17, 18, 1, 0, 25]


def row_numbers(tf: Any, splits: Any) -> Any:
    """Returns the number of each id's row."""
    return tf.repeat(tf.range(tf.size(splits) - 1), tf.cast(splits[1:] - splits[:-1], tf.int32))


def sparse(tf: Any, values: Any, splits: Any) -> Any:
    """Returns the SparseTensor of ragged values."""
    return tf.RaggedTensor.from_row_splits(values, splits).to_sparse()


def by_lookup(tf: Any, table: Any, values: Any, splits: Any, weights: Any, combiner: str) -> Any:
    """Combines rows by tf.nn.embedding_lookup_sparse; weights: None if all are 1."""
    weights = None if weights is None else sparse(tf, weights, splits)
    return tf.compat.v1.nn.safe_embedding_lookup_sparse(table, sparse(tf, values, splits), weights, combiner)


def served_lookup(tf: Any, table: Any, values: Any, splits: Any, combiner: str) -> Any:
    """Combines rows as TPUEmbedding's own serving does."""
    embedding = tf.tpu.experimental.embedding
    rows = embedding.TableConfig(*table.shape, combiner=combiner)
    config = embedding.FeatureConfig(rows)
    ids = tf.RaggedTensor.from_row_splits(values, splits)
    return embedding.serving_embedding_lookup([ids], [None], {rows: table}, [config])[0]


COMBINED: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    "one_each": lambda tf, t, v, s, w: tf.gather(t, v),
    "ragged_sum": lambda tf, t, v, s, w: tf.reduce_sum(tf.RaggedTensor.from_row_splits(tf.gather(t, v), s), 1),
    "segment_sum": lambda tf, t, v, s, w: tf.math.segment_sum(tf.gather(t, v), row_numbers(tf, s)),
    "segment_mean": lambda tf, t, v, s, w: tf.math.segment_mean(tf.gather(t, v), row_numbers(tf, s)),
    "lookup_sum": lambda tf, t, v, s, w: by_lookup(tf, t, v, s, None, "sum"),
    "lookup_mean": lambda tf, t, v, s, w: by_lookup(tf, t, v, s, None, "mean"),
    "weighted_sum": lambda tf, t, v, s, w: by_lookup(tf, t, v, s, w, "sum"),
    "weighted_mean": lambda tf, t, v, s, w: by_lookup(tf, t, v, s, w, "mean"),
    "tpu_mean": lambda tf, t, v, s, w: served_lookup(tf, t, v, s, "mean"),
}  # fmt: skip


@pytest.fixture(scope="module", params=[11, 3])
def versions(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """A SavedModel with a signature for each of COMBINED, and its adopted version, for a wide and a narrow table."""
    from model_export.adoption.adopt import adopt
    from model_export.tensorflow_setup import tf

    numbers = np.random.default_rng(3).standard_normal((40, request.param)).astype(np.float32)
    numbers[: len(SMALL)] = np.array(SMALL, np.float32)[:, None]
    numbers.reshape(-1)[100::7] = np.resize(SMALL, numbers.reshape(-1)[100::7].shape)
    module = tf.Module()
    module.table = tf.Variable(numbers)
    specs = {
        "ids": tf.TensorSpec([None], tf.int64),
        "splits": tf.TensorSpec([None], tf.int64),
        "weights": tf.TensorSpec([None], tf.float32),
    }

    def signature(name: str) -> Any:
        wanted = ["ids"] if name == "one_each" else [*specs] if "weighted" in name else ["ids", "splits"]

        def run(**inputs: Any) -> Any:
            given = [inputs.get(key) for key in specs]
            return {"vectors": COMBINED[name](tf, module.table, *given)}

        return tf.function(run).get_concrete_function(**{key: specs[key] for key in wanted})

    folder = tmp_path_factory.mktemp("small")
    tf.saved_model.save(module, str(folder / "1"), signatures={name: signature(name) for name in COMBINED})
    return folder / "1", adopt(folder / "1", out=folder / "adopted", measure=False)


@pytest.mark.parametrize("name", COMBINED)
def test_a_lookup_gives_the_bits_of_tensorflow(versions: tuple[Path, Path], name: str) -> None:
    from model_export.graphs.signature_runner import open_signatures

    original, adopted = versions
    manifest = Manifest.read(adopted)
    assert manifest is not None and manifest.signatures[name].kind == "lookup"
    servable = ServableLoader(frozenset({"serve"}), "off", 1, compile_native)("model", 1, adopted)
    assert servable.native is not None
    random = np.random.default_rng(6)
    with open_signatures(original) as runner:
        for row in (*range(len(SMALL)), None):
            splits = np.cumsum([0, *LENGTHS])
            ids = np.full(splits[-1], row) if row is not None else random.integers(0, 40, splits[-1])
            weights = random.choice(np.array([1, 0.5, -2, 1e-39, 0], np.float32), splits[-1])
            given = {"ids": ids, "splits": splits, "weights": weights}
            request = {key: given[key] for key in runner.signatures[name].inputs}
            wanted = runner.run(name, request)["vectors"]
            found = servable.native.run(name, request)["vectors"]
            assert found.shape == wanted.shape
            same = (found.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(found) & np.isnan(wanted))
            assert same.all(), (row, found[~same.all(1)][:3], wanted[~same.all(1)][:3])
