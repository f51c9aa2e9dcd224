"""Tables whose rows lie in shards on several processes, and their optimizer.

A step reads each distinct row of its batch once, looks up in these rows alone, and sends one gradient for each of them
back to the row's shard. So a row crosses the network once each way, however often a batch has the row's id. No process
needs a whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_export.spec.features import ModelSpec, TableSpec
from model_export.tensorflow_setup import tf
from model_export.training.table_updates import RowGradient

# The constants of Keras' Adagrad, which trains the tables of a run in one process.
_INITIAL_ACCUMULATOR = 0.1
_EPSILON = 1e-7
_BLOCK_ROWS = 1 << 16
_SEEDS_PER_BLOCK = 1009


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """The distinct rows that a batch looks up in each table, and its ids as positions among these rows.

    rows: table -> [U] int64, distinct. features: feature -> tensor or RaggedTensor; each element is an index into
    `rows` of the feature's table.
    """

    rows: Mapping[str, Any]
    features: Mapping[str, Any]

    @staticmethod
    def of(spec: ModelSpec, features: Mapping[str, Any]) -> DistinctRows:
        """Finds the distinct rows of a batch; features: feature -> [B] tensor or RaggedTensor of row numbers."""
        rows, positions = {}, {}
        for table in spec.tables:
            readers = [f.name for f in spec.features if f.table == table.name and f.name in features]
            flat = [_values(features[name]) for name in readers]
            if not flat:
                continue
            rows[table.name], index = tf.unique(tf.concat(flat, axis=0), out_idx=tf.int64)
            for name, part in zip(readers, tf.split(index, [tf.size(ids) for ids in flat], num=len(flat)), strict=True):
                ids = features[name]
                positions[name] = ids.with_values(part) if isinstance(ids, tf.RaggedTensor) else part
        return DistinctRows(rows, positions)

    @staticmethod
    def most(spec: ModelSpec, batch_size: int) -> dict[str, int]:
        ids = {table.name: 0 for table in spec.tables}
        for feature in spec.features:
            ids[feature.table] += batch_size * (feature.max_ids_per_row if feature.is_ragged else 1)
        return {table.name: min(ids[table.name], table.vocabulary_size) for table in spec.tables}

    def look_up(self, vectors: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Combines the vectors of each feature: [B, D].

        Args:
          vectors: table -> [U, D] float32, the vectors of `rows`.
          config: feature -> TensorFlow's FeatureConfig.
        """
        used = {name: config[name] for name in self.features}
        tables = {feature.table: vectors[feature.table.name] for feature in used.values()}
        found: dict[str, Any] = tf.tpu.experimental.embedding.serving_embedding_lookup(
            dict(self.features), None, tables, used
        )
        return found


class ShardedTable:
    """A [V, D] float32 table and its Adagrad accumulator; make it within the scope of the strategy that places it.

    If the strategy splits variables, both are ShardedVariables of the same layout: consecutive rows in each shard.
    """

    def __init__(self, spec: TableSpec, seed: int) -> None:
        shape = (spec.vocabulary_size, spec.embedding_dim)

        def initial(partition_shape: Any = shape, partition_offset: Any = (0, 0)) -> Any:
            # TensorFlow calls a sharded table's initializer once for each shard, with the shard's shape and offset.
            return initial_rows(spec, seed, partition_offset[0], partition_offset[0] + partition_shape[0])

        def accumulated(partition_shape: Any = shape, partition_offset: Any = (0, 0)) -> Any:
            return tf.fill(partition_shape, _INITIAL_ACCUMULATOR)

        self.table = tf.Variable(initial, shape=shape, dtype=tf.float32, name=spec.name)
        self.accumulator = tf.Variable(
            accumulated, shape=shape, dtype=tf.float32, trainable=False, name=f"{spec.name}_accumulator"
        )

    def gather(self, rows: Any) -> Any:
        """Reads rows of the sharded table from their shards: [U] int64 row numbers -> [U, D]."""
        return tf.nn.embedding_lookup(self.table, rows)

    def update(self, rows: Any, gradients: Any, learning_rate: float, *, most_rows: int) -> None:
        """Sums the gradients of all replicas by row, and applies Adagrad to these table rows; call it inside a replica.

        Args:
          rows: [U] int64, distinct. gradients: [U, D].
          most_rows: the largest U of any replica and step.
        """
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            rows, gradients = _of_all_replicas(context, rows, gradients, most_rows)
        summed = RowGradient(rows, gradients).summed()
        context.merge_call(_update_shards(parts(self.table), parts(self.accumulator), learning_rate), (summed,))


def initial_rows(spec: TableSpec, seed: int, first: int, end: int) -> Any:
    """Draws the first values of the rows [first, end) of a table; they do not depend on how its rows are sharded.

    A table of at most _BLOCK_ROWS rows gets the same first values as in a run in one process. The values of a larger
    table are drawn block by block, so that no process has the whole table in memory.
    """
    blocks = []
    for block in range(first // _BLOCK_ROWS, -(-end // _BLOCK_ROWS)):
        start = block * _BLOCK_ROWS
        rows = min(_BLOCK_ROWS, spec.vocabulary_size - start)
        # The seeds of blocks lie far apart, because tables have seeds near the run's seed: no two blocks share a seed.
        draw = tf.initializers.TruncatedNormal(stddev=spec.initial_stddev, seed=seed + block * _SEEDS_PER_BLOCK)
        drawn = draw([rows, spec.embedding_dim], tf.float32)
        blocks.append(drawn[max(first - start, 0) : end - start])
    return tf.concat(blocks, axis=0)


def parts(variable: Any) -> Sequence[Any]:
    """Returns the shards of a ShardedVariable in the order of their rows; for another variable, a list of it alone."""
    shards: Sequence[Any] = getattr(variable, "variables", None) or [variable]
    return shards


def _of_all_replicas(context: Any, rows: Any, gradients: Any, most_rows: int) -> tuple[Any, Any]:
    # TensorFlow 2.21's all-reduce of IndexedSlices fails on CPUs in a compiled loop of steps, whose numbers of rows
    # differ: "Shape mismatch in the collective instance". So every replica sends the same number of rows in every step,
    # filled up with row 0 and gradients of zeros, which change nothing.
    missing = most_rows - tf.size(rows)
    rows = tf.ensure_shape(tf.pad(rows, [[0, missing]]), [most_rows])
    gradients = tf.ensure_shape(tf.pad(gradients, [[0, missing], [0, 0]]), [most_rows, gradients.shape[1]])
    return context.all_gather(rows, axis=0), context.all_gather(gradients, axis=0)


def _update_shards(tables: Sequence[Any], accumulators: Sequence[Any], rate: float) -> Callable[..., None]:
    def update(strategy: Any, gradient: RowGradient) -> None:
        first = 0
        for table, accumulator in zip(tables, accumulators, strict=True):
            end = first + int(table.shape[0])
            values, rows = gradient.values, gradient.rows
            if len(tables) > 1:
                chosen = tf.where((rows >= first) & (rows < end))[:, 0]
                values, rows = tf.gather(values, chosen), tf.gather(rows, chosen) - first
            strategy.extended.update(table, _adagrad, args=(accumulator, values, rows, rate))
            first = end

    return update


def _adagrad(table: Any, accumulator: Any, values: Any, rows: Any, rate: float) -> Any:
    return tf.raw_ops.ResourceSparseApplyAdagradV2(
        var=table.handle, accum=accumulator.handle, lr=rate, epsilon=_EPSILON, grad=values, indices=rows
    )


def _values(ids: Any) -> Any:
    return tf.cast(ids.values if isinstance(ids, tf.RaggedTensor) else ids, tf.int64)
