"""Creates variables for the tables in an EmbeddingConfigSpec's table_to_config_dict."""

from __future__ import annotations

from typing import Any

from model_export.spec.table_config import TableConfig
from model_export.tensorflow_setup import tf


def create_table(name: str, config: TableConfig) -> Any:
    """Adds a table's variable to the current graph; its name is the table's, without the scope of the caller.

    Args:
      name: key in table_to_config_dict, which is also the table's key in a TPU's checkpoint.

    Returns:
      A resource variable, [vocabulary_size, dimension] float32.

    Raises:
      ValueError: the graph already has a variable of that name.
    """
    v1 = tf.compat.v1
    initializer = config.initializer
    if initializer is None:
        initializer = v1.truncated_normal_initializer(mean=0.0, stddev=config.initial_stddev)
    with v1.variable_scope(v1.VariableScope(reuse=False, name=""), auxiliary_name_scope=False), v1.name_scope(None):
        return v1.get_variable(
            name, shape=[config.vocabulary_size, config.dimension], initializer=initializer, use_resource=True
        )
