"""The core's bounded norms, empty rows, weights and stored rows are TensorFlow's, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.parity.oracle import looked_up
from service.artifact.manifest import LookupFeature
from service.types import RaggedIds
from tests.core_lookups import CoreLookups
from tests.toy_described import write_lookup_model

NATIVE = pytest.importorskip("service._native", reason="the native core is not built")
pytestmark = pytest.mark.tf

RANDOM = np.random.default_rng(11)
# The dimensions use packets of eight numbers, groups of four of these, and columns left over.
DIMS = (1, 5, 8, 37, 107)
SPLITS = np.array([0, 3, 3, 4, 8, 8, 8])
IDS = np.array([1, 8, 1, 4, 0, 2, 7, 3])
WEIGHTS = RANDOM.uniform(0.5, 2, IDS.size).astype(np.float32)
COMBINERS = ("sum", "mean", "sqrtn")
TINY = np.float32(1e-39)


def table_of(dim: int) -> np.ndarray:
    """Returns a table of 14 rows: random ones, and from row 9 on edges of norms and numbers."""
    table = RANDOM.normal(size=(14, dim)).astype(np.float32)
    table[9] = 0
    table[9, 0] = 2.0
    table[10] = 0
    table[11] = np.where(np.arange(dim) % 2, -TINY, TINY)
    table[12, -1] = np.nan
    table[13, 0] = -np.inf
    return table


class Bag:
    """One feature of a table, asked of the core."""

    def __init__(self, folder: Path, table: np.ndarray, **options: Any) -> None:
        weights = {"weights": "w"} if options.get("summation", "in_order") == "in_order" else {}
        fields = {"ids": "v", "output": "out", **options}
        if "combiner" in fields or "max_sequence_length" in fields:
            fields["row_splits"] = "s"
        if "combiner" in fields:
            fields |= weights
        self._table, self._feature = table, LookupFeature(**fields)
        self._core = CoreLookups(write_lookup_model(folder, {"t": table}, {"lookup": {"f": ("t", fields)}}), NATIVE)

    def ask(self, ids: np.ndarray, splits: np.ndarray | None = SPLITS, weights: np.ndarray | None = None) -> np.ndarray:
        """Looks up ids; compares the finite answer with the oracle's, which computes in float64, and returns it."""
        inputs = {"v": ids.astype(np.int64)}
        if self._feature.row_splits is not None:
            assert splits is not None
            inputs["s"] = splits.astype(np.int64)
        if weights is not None:
            inputs["w"] = weights
        found = self._core.predict("lookup", inputs)["out"]
        if np.isfinite(found).all():
            sent = ids if self._feature.row_splits is None else RaggedIds(ids, splits, weights)
            wanted = looked_up(self._table, self._feature, sent)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        return found


def sparse(tf: Any, values: np.ndarray, splits: np.ndarray = SPLITS) -> Any:
    """Returns values, split into rows, as a sparse tensor."""
    return tf.RaggedTensor.from_row_splits(values, splits).to_sparse()


def assert_bits(found: np.ndarray, wanted: Any) -> None:
    """Asserts that two arrays have the same bits, but for those of NaN."""
    wanted = np.asarray(wanted)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    is_nan = np.isnan(wanted)
    assert (np.isnan(found) == is_nan).all()
    bits = f"u{found.itemsize}"
    np.testing.assert_array_equal(found.view(bits)[~is_nan], wanted.view(bits)[~is_nan])


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("max_norm", [0.25, 2.0, 100.0, 1e-30, 3e38])
def test_max_norm_without_row_splits_is_embedding_lookups(tf: Any, tmp_path: Path, dim: int, max_norm: float) -> None:
    table = table_of(dim)
    bag = Bag(tmp_path / "1", table, max_norm=max_norm)
    for ids in (np.arange(14), np.array([3, 3, 11, 9]), np.array([9]), np.array([], np.int64)):
        assert_bits(bag.ask(ids), tf.nn.embedding_lookup(table, ids, max_norm=max_norm))


def test_a_long_vectors_norm_is_summed_as_tensorflow_does(tf: Any, tmp_path: Path) -> None:
    table = RANDOM.normal(size=(3, 20_003)).astype(np.float32)
    found = Bag(tmp_path / "1", table, max_norm=1.0).ask(np.arange(3))
    assert_bits(found, tf.nn.embedding_lookup(table, np.arange(3), max_norm=1.0))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("max_norm", [0.25, 2.0, 100.0])
def test_max_norm_is_embedding_lookup_sparses(
    tf: Any, tmp_path: Path, dim: int, combiner: str, is_weighted: bool, max_norm: float
) -> None:
    table, weights = table_of(dim), WEIGHTS if is_weighted else None
    summation = "in_order" if is_weighted else "blocks_of_8"
    bag = Bag(tmp_path / "1", table, combiner=combiner, max_norm=max_norm, summation=summation)
    for ids in (IDS, np.array([9, 10, 11, 9, 12, 13, 11, 11]), np.full(8, 9)):
        theirs = tf.nn.safe_embedding_lookup_sparse(
            tf.constant(table),
            sparse(tf, ids),
            None if weights is None else sparse(tf, weights),
            combiner=combiner,
            max_norm=max_norm,
        )
        assert_bits(bag.ask(ids, weights=weights) + 0, theirs.numpy() + 0)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("default_row", [6, 9, 11])
def test_a_default_row_is_safe_embedding_lookup_sparses(
    tf: Any, tmp_path: Path, combiner: str, max_norm: float | None, is_weighted: bool, default_row: int
) -> None:
    table = table_of(5)
    bag = Bag(
        tmp_path / "1",
        table,
        combiner=combiner,
        max_norm=max_norm,
        on_bad_id="drop_negative",
        on_nonpositive_weight="drop",
        on_empty_row="default_row",
        default_row=default_row,
        summation="in_order" if is_weighted else "blocks_of_8",
    )
    weights = WEIGHTS.copy()
    if combiner != "sum":
        # TensorFlow drops a weight that is not above 0, except for sum.
        weights[:] = [0, -0.0, np.nan, -1, 2, 0.5, TINY, 1]
    none = np.zeros(3, np.int64)
    for ids, splits, factors in (
        (np.where(IDS == 4, -1, IDS), SPLITS, weights),
        (np.full(8, -1), SPLITS, weights),
        (none[:0], none, weights[:0]),
        (none[:0], none[:1], weights[:0]),
    ):
        if splits.size == 1:
            # TensorFlow refuses a sparse tensor without rows.
            assert bag.ask(ids, splits, factors if is_weighted else None).shape == (0, 5)
            continue
        theirs = tf.nn.safe_embedding_lookup_sparse(
            tf.constant(table),
            sparse(tf, ids, splits),
            sparse(tf, factors, splits) if is_weighted else None,
            combiner=combiner,
            default_id=default_row,
            max_norm=max_norm,
        )
        # With weights, a manifest's sums begin with zeros, and TensorFlow's with the first vector: zeros of both may
        # differ in their signs.
        assert_bits(bag.ask(ids, splits, factors if is_weighted else None) + 0, theirs.numpy() + 0)


@pytest.mark.parametrize("splits", [SPLITS, SPLITS[:-1], np.array([0, 0, 8, 8]), np.zeros(4, np.int64)])
def test_rows_that_are_cut_off_are_segment_means(tf: Any, tmp_path: Path, splits: np.ndarray) -> None:
    table, ids = table_of(5), IDS[: splits[-1]]
    segments = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
    theirs = tf.math.segment_mean(tf.gather(table, ids), segments)
    bag = Bag(tmp_path / "1", table, combiner="mean", trailing_empty_rows="cut", summation="segment_mean")
    assert_bits(bag.ask(ids, splits), theirs)


def test_the_mean_of_no_vectors_is_reduce_means(tf: Any, tmp_path: Path) -> None:
    table = table_of(5)
    theirs = tf.reduce_mean(tf.gather(table, tf.RaggedTensor.from_row_splits(IDS, SPLITS)), axis=1)
    assert np.isnan(theirs.numpy()).any()
    assert_bits(Bag(tmp_path / "1", table, combiner="mean", on_empty_row="nan").ask(IDS), theirs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_stored_rows_are_what_a_graph_gathers(tf: Any, tmp_path: Path, dtype: str, dim: int) -> None:
    table = table_of(dim)
    variable = tf.cast(table, dtype).numpy()
    if dtype == "bfloat16":
        table = (variable.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif dtype == "float64":
        table = variable
    features = {
        "lookup": {
            "one": ("t", {"ids": "one", "output": "one", "on_bad_id": "drop"}),
            "steps": ("t", {"ids": "v", "row_splits": "s", "max_sequence_length": 2, "output": "steps"}),
        }
    }
    core = CoreLookups(write_lookup_model(tmp_path / "1", {"t": table}, features, dtypes={"t": dtype}), NATIVE)
    found = core.predict("lookup", {"one": np.append(IDS, -1), "v": IDS, "s": SPLITS})
    assert found["one"].tobytes() == tf.gather(variable, IDS).numpy().tobytes() + bytes(dim * variable.itemsize)
    steps = tf.RaggedTensor.from_row_splits(tf.gather(variable, IDS), SPLITS)
    wanted = steps[:, :2].to_tensor(shape=(len(SPLITS) - 1, 2, dim))
    assert found["steps"].tobytes() == wanted.numpy().tobytes()
