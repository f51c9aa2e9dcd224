"""Bounded norms, default rows, rows cut short and stored rows agree with TensorFlow and with the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_export.parity.oracle import looked_up
from service.artifact.manifest import LookupFeature, SignatureEntry
from service.tables.plan import compile_signature
from service.tables.table import MappedTable
from service.types import RaggedIds, TableInfo

pytestmark = pytest.mark.tf

RANDOM = np.random.default_rng(11)
TABLE = RANDOM.normal(size=(9, 5)).astype(np.float32)
SPLITS = np.array([0, 3, 3, 4, 8, 8, 8])
IDS = np.array([1, 8, 1, 4, 0, 2, 7, 3])
WEIGHTS = RANDOM.uniform(0.5, 2, IDS.size).astype(np.float32)
COMBINERS = ("sum", "mean", "sqrtn")


def ours(ids: np.ndarray, weights: np.ndarray | None = None, **options: Any) -> np.ndarray:
    """Looks up ids with SPLITS; compares the answer with the oracle's, and returns it."""
    feature = LookupFeature("v", "s", "w", "out", **options)
    table = MappedTable(TableInfo("t", *TABLE.shape, "float32", TABLE.nbytes, ()), TABLE)
    plan = compile_signature(SignatureEntry("lookup", {"f": feature}), {"f": "t"}, {"t": table})
    inputs = {"v": ids, "s": SPLITS} | ({} if weights is None else {"w": weights})
    found = plan.run(inputs, ("out",))["out"]
    np.testing.assert_allclose(found, looked_up(TABLE, feature, RaggedIds(ids, SPLITS, weights)), rtol=1e-5, atol=1e-6)
    return found


def sparse(tf: Any, values: np.ndarray) -> Any:
    """Returns values, split with SPLITS, as a sparse tensor of six rows."""
    return tf.RaggedTensor.from_row_splits(values, SPLITS).to_sparse()


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("max_norm", [0.25, 2.0, 100.0])
def test_max_norm_is_embedding_lookup_sparses(tf: Any, combiner: str, is_weighted: bool, max_norm: float) -> None:
    weights = WEIGHTS if is_weighted else None
    theirs = tf.nn.safe_embedding_lookup_sparse(
        tf.constant(TABLE),
        sparse(tf, IDS),
        None if weights is None else sparse(tf, weights),
        combiner=combiner,
        max_norm=max_norm,
    )
    found = ours(IDS, weights, combiner=combiner, max_norm=max_norm)
    np.testing.assert_allclose(found, theirs, rtol=1e-5, atol=1e-6)


def test_max_norm_without_row_splits_is_embedding_lookups(tf: Any) -> None:
    feature = LookupFeature("v", output="out", max_norm=1.5)
    table = MappedTable(TableInfo("t", *TABLE.shape, "float32", TABLE.nbytes, ()), TABLE)
    plan = compile_signature(SignatureEntry("lookup", {"f": feature}), {"f": "t"}, {"t": table})
    found = plan.run({"v": IDS}, ("out",))["out"]
    np.testing.assert_allclose(found, tf.nn.embedding_lookup(TABLE, IDS, max_norm=1.5), rtol=1e-6)
    np.testing.assert_allclose(found, looked_up(TABLE, feature, IDS), rtol=1e-6)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_default_row_is_safe_embedding_lookup_sparses(
    tf: Any, combiner: str, max_norm: float | None, is_weighted: bool
) -> None:
    ids, weights = np.where(IDS == 4, -1, IDS), WEIGHTS.copy()
    if combiner != "sum":
        # TensorFlow drops a weight of 0, except for sum, where it adds nothing.
        weights[4:] = 0
    theirs = tf.nn.safe_embedding_lookup_sparse(
        tf.constant(TABLE),
        sparse(tf, ids),
        sparse(tf, weights) if is_weighted else None,
        combiner=combiner,
        default_id=6,
        max_norm=max_norm,
    )
    found = ours(
        ids,
        weights if is_weighted else None,
        combiner=combiner,
        max_norm=max_norm,
        on_bad_id="drop_negative",
        on_nonpositive_weight="drop",
        on_empty_row="default_row",
        default_row=6,
    )
    np.testing.assert_allclose(found, theirs, rtol=1e-5, atol=1e-6)


def test_rows_that_are_cut_off_are_segment_means(tf: Any) -> None:
    segments = np.repeat(np.arange(6), np.diff(SPLITS))
    theirs = tf.math.segment_mean(tf.gather(TABLE, IDS), segments)
    found = ours(IDS, combiner="mean", trailing_empty_rows="cut")
    assert found.shape == theirs.shape == (4, 5)
    np.testing.assert_allclose(found, theirs, rtol=1e-5)


def test_the_mean_of_no_vectors_is_reduce_means(tf: Any) -> None:
    theirs = tf.reduce_mean(tf.gather(TABLE, tf.RaggedTensor.from_row_splits(IDS, SPLITS)), axis=1)
    assert np.isnan(theirs.numpy()).any()
    np.testing.assert_allclose(ours(IDS, combiner="mean", on_empty_row="nan"), theirs, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_stored_rows_are_what_a_graph_gathers(tf: Any, dtype: str) -> None:
    variable = tf.cast(TABLE, dtype)
    stored = variable.numpy().view(np.uint16) if dtype == "bfloat16" else variable.numpy()
    table = MappedTable(TableInfo("t", *TABLE.shape, dtype, stored.nbytes, ()), stored)
    found = table.stored_rows(IDS)
    assert found.dtype == variable.dtype.as_numpy_dtype
    assert found.tobytes() == tf.gather(variable, IDS).numpy().tobytes()
    # TensorFlow accepts the stored rows as a tensor.
    assert np.array_equal(tf.identity(found).numpy(), found)
    np.testing.assert_allclose(table.rows(IDS), tf.cast(tf.gather(variable, IDS), tf.float32))
