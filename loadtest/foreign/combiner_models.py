"""Builds tf.Modules that combine sparse ids with embedding_lookup_sparse or safe_embedding_lookup_sparse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.foreign.kinds import Ragged, Sparse
from loadtest.foreign.models import ZOO, Rows
from loadtest.foreign.random_tables import save_module, spec, variable

TAGS = 500
_COMBINERS = ("sum", "mean", "sqrtn")
_SPARSE = {"ids": Sparse(TAGS, indices="indices", dense_shape="dense_shape", weights="weights")}
_RAGGED = {"ids": Ragged(TAGS, splits="splits", weights="weights")}
# Type of a function of (table, ids, weights or None, combiner) that returns combined vectors.
Combine = Callable[[Any, Any, Any, str], Any]


def _sparse_specs(*, has_weights: bool) -> list[Any]:
    specs = [spec("ids"), spec("indices", "int64", (None, 2)), spec("dense_shape", "int64", (2,))]
    return [*specs, spec("weights", "float32")] if has_weights else specs


def _add_sparse(name: str, combine: Combine) -> None:
    # The model has two signatures for each combiner: one with weights and one without.
    def build(folder: Path, rows: Rows) -> None:
        import tensorflow as tf

        table = variable("tag", rows(TAGS), 16)

        def signature(combiner: str, *, has_weights: bool) -> tuple[Callable[..., Any], list[Any]]:
            def read(ids: Any, indices: Any, dense_shape: Any, weights: Any = None) -> Any:
                sparse = tf.SparseTensor(indices, ids, dense_shape)
                if weights is not None:
                    weights = tf.SparseTensor(indices, weights, dense_shape)
                return {"vectors": combine(table, sparse, weights, combiner)}

            return read, _sparse_specs(has_weights=has_weights)

        signatures = {c: signature(c, has_weights=False) for c in _COMBINERS}
        signatures |= {f"{c}_weighted": signature(c, has_weights=True) for c in _COMBINERS}
        save_module(folder, {"table": table}, signatures)

    ZOO.add(f"sparse_{name}", _SPARSE, build)


def _add_ragged(name: str, combine: Combine) -> None:
    # A model whose inputs are ids and row splits; its graph makes a RaggedTensor or a SparseTensor of them.
    def build(folder: Path, rows: Rows) -> None:
        import tensorflow as tf

        table = variable("tag", rows(TAGS), 16)

        def signature(combiner: str, *, has_weights: bool) -> tuple[Callable[..., Any], list[Any]]:
            def read(ids: Any, splits: Any, weights: Any = None) -> Any:
                ragged = tf.RaggedTensor.from_row_splits(ids, splits)
                if weights is not None:
                    weights = tf.RaggedTensor.from_row_splits(weights, splits)
                return {"vectors": combine(table, ragged, weights, combiner)}

            specs = [spec("ids"), spec("splits")]
            return read, [*specs, spec("weights", "float32")] if has_weights else specs

        signatures = {c: signature(c, has_weights=False) for c in _COMBINERS}
        signatures["mean_weighted"] = signature("mean", has_weights=True)
        save_module(folder, {"table": table}, signatures)

    ZOO.add(f"ragged_{name}", _RAGGED, build)


def _lookup(**options: Any) -> Combine:
    def combine(table: Any, ids: Any, weights: Any, combiner: str) -> Any:
        import tensorflow as tf

        return tf.nn.embedding_lookup_sparse(table, ids, weights, combiner=combiner, **options)

    return combine


def _safe(**options: Any) -> Combine:
    def combine(table: Any, ids: Any, weights: Any, combiner: str) -> Any:
        import tensorflow as tf

        return tf.nn.safe_embedding_lookup_sparse(table, ids, weights, combiner=combiner, **options)

    return combine


def _made_sparse(combine: Combine) -> Combine:
    return lambda table, ids, weights, combiner: combine(
        table, ids.to_sparse(), None if weights is None else weights.to_sparse(), combiner
    )


_add_sparse("lookup", _lookup())
_add_sparse("lookup_bounded", _lookup(max_norm=2.0))
_add_sparse("lookup_fast", _lookup(allow_fast_lookup=True))
_add_sparse("safe", _safe())
_add_sparse("safe_default_row", _safe(default_id=3))
_add_sparse("safe_bounded", _safe(max_norm=2.0))
_add_ragged("lookup", _lookup())
_add_ragged("safe_of_sparse", _made_sparse(_safe()))
_add_ragged("safe_default_row_of_sparse", _made_sparse(_safe(default_id=0)))
