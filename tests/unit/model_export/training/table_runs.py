"""Runs train_tables for a few steps and returns the resulting table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.table_config import FeatureConfig, TableConfig
from tests.unit.model_export.late import tf
from tests.unit.model_export.training.optimizer_oracle import Occurrences

V, D = 6, 2
START = np.linspace(-1, 1, V * D).reshape(V, D)
# The gradients of three steps, as (row, gradient). Row 3 occurs three times in the first step, row 1 in every step,
# rows 2 and 5 in none; the steps have different lengths.
STEPS: list[Occurrences] = [
    [(3, (1.0, -2.0)), (1, (0.5, 0.25)), (3, (-3.0, 0.5)), (3, (0.125, 1.0))],
    [(1, (-0.5, 4.0)), (0, (2.0, -1.0))],
    [(4, (0.25, 0.75)), (1, (1.5, -0.5)), (4, (-2.0, 0.5))],
]
UNTOUCHED = [2, 5]


def spec_of(parameters: Any, **fields: Any) -> EmbeddingConfigSpec:
    """Returns an EmbeddingConfigSpec of table "film" with these optimizer parameters."""
    return EmbeddingConfigSpec(
        optimization_parameters=parameters,
        feature_to_config_dict={"liked": FeatureConfig("film")},
        table_to_config_dict={"film": TableConfig(V, D)},
        **fields,
    )


def run_steps(
    parameters: Any,
    steps: Sequence[Occurrences] = STEPS,
    *,
    dtype: str = "float64",
    flush: bool = True,
    learning_rate: float | None = None,
    learning_rate_fn: Any = None,
    **fields: Any,
) -> tuple[np.ndarray[Any, Any], Mapping[str, np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """Trains a table, initialized with START, with each step's gradients.

    Returns:
      The table, its slots by name, and the table at each step's lookups.
    """
    from model_export.training.table_optimizers import TrainedTable, train_tables

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        film = v1.get_variable("film", initializer=tf.constant(START, dtype), use_resource=True)
        global_step = v1.train.get_or_create_global_step()
        rows = v1.placeholder(tf.int32, [None])
        values = v1.placeholder(dtype, [None, D])
        seen = tf.identity(film)
        with tf.control_dependencies([seen]):
            gradient = tf.IndexedSlices(tf.identity(values), tf.identity(rows), dense_shape=[V, D])
        table = TrainedTable(film, parameters, learning_rate, learning_rate_fn)
        training = train_tables(spec_of(parameters, **fields), [table], [gradient], global_step)
        with tf.control_dependencies([training.train]):
            step = v1.assign_add(global_step, 1)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            states = []
            for occurrences in steps:
                feed = {
                    rows: [row for row, _ in occurrences],
                    values: np.array([vector for _, vector in occurrences]).reshape(-1, D),
                }
                states.append(session.run([seen, step], feed)[0])
            if flush:
                session.run(training.flush)
            (slots,) = training.slots.values()
            return session.run(film), {slot.op.name: session.run(slot) for slot in slots}, states
