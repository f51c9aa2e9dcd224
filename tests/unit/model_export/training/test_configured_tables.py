"""A table in table_to_config_dict gets a variable with its name, shape and first rows."""

from __future__ import annotations

import numpy as np
import pytest

from model_export.spec.table_config import TableConfig

pytestmark = pytest.mark.tf


def test_first_rows_are_a_truncated_normal_that_goes_with_the_dimension() -> None:
    from model_export.estimator.embedding_tables import create_table
    from model_export.tensorflow_setup import tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        with v1.variable_scope("tower"):
            table = create_table("film", TableConfig(4000, 16))
        assert (table.op.name, table.dtype.base_dtype, v1.trainable_variables()) == ("film", tf.float32, [table])
        session.run(v1.global_variables_initializer())
        rows = session.run(table)
    assert rows.shape == (4000, 16)
    assert np.abs(rows).max() <= 2 * 0.25  # cut at two standard deviations
    # A normal distribution cut at two standard deviations has 0.8796 of its standard deviation.
    assert rows.std() == pytest.approx(0.25 * 0.8796, rel=0.01)
    assert abs(rows.mean()) < 0.005


def test_an_initializer_is_used() -> None:
    from model_export.estimator.embedding_tables import create_table
    from model_export.tensorflow_setup import tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        table = create_table("film", TableConfig(3, 2, initializer=v1.constant_initializer(7.0)))
        session.run(v1.global_variables_initializer())
        assert session.run(table).tolist() == [[7, 7]] * 3
