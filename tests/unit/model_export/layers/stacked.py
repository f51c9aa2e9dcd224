"""Writes a checkpoint in the form of SparseCores, with stacked tables; TensorFlow itself does so on a TPU only.

Source: row r of a table lies in shard (r % cores + rotation) % cores at offset + r // cores, columns padded with zeros
(TensorFlow 2.21, map_indices_in_shard in python/tpu/tpu_embedding_v3_utils.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

CORES = 4


def write_stacked(tf: Any, path: Path, values: Mapping[str, Any], dense: Mapping[str, Any]) -> str:
    """Writes one stack of all tables, each rotated by its position; returns the checkpoint's path.

    Args:
      values: table -> [V, D] float32. dense: variable of the model's dense layer -> value.
    """
    from tensorflow.core.tpu.kernels import sparse_core_layout_pb2

    layouts = sparse_core_layout_pb2.SparseCoreTableLayouts()
    padded = {name: -(-len(table) // CORES) * CORES for name, table in values.items()}
    shard_rows, width = sum(padded.values()) // CORES, 8
    stack = np.zeros((CORES * shard_rows, width), np.float32)
    stack_name, offset = "_".join(values), 0
    for rotation, (name, table) in enumerate(values.items()):
        layouts.tables.add(
            table_name=name,
            stacked_table_name=stack_name,
            num_sparse_cores=CORES,
            num_partitions=2,
            total_rows_per_sparse_core_shard=shard_rows,
            sparse_core_shard_row_offset=offset,
            sparse_core_shard_rotation=rotation,
            unsharded_shape=table.shape,
            unsharded_padded_shape=[padded[name], width],
        )
        for number, row in enumerate(table):
            shard = (number % CORES + rotation) % CORES
            stack[shard * shard_rows + offset + number // CORES, : len(row)] = row
        offset += padded[name] // CORES
    node = tf.train.Checkpoint
    held = node(
        **{"_sparse_core_table_layouts": tf.Variable(layouts.SerializeToString()), stack_name: tf.Variable(stack)}
    )
    parts = node(**{name: tf.Variable(value) for name, value in dense.items()})
    written: str = node(model=node(embedding_layer=node(_tpu_embedding=held), dense=parts)).write(str(path))
    return written
