"""TableConfig and FeatureConfig, tables and features without columns, as in TensorFlow 2.15's tpu_embedding.

Source: tensorflow/python/tpu/tpu_embedding.py at v2.15.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from model_export.spec.optimization_parameters import OptimizationParameters
from service.artifact.manifest import Combiner


@dataclass(frozen=True, slots=True)
class TableConfig:
    """The configuration of one table of shape [vocabulary_size, dimension].

    Args:
      initializer: function from a shape to the initial rows; None: a truncated normal with mean 0 and standard
        deviation initial_stddev.
      combiner: combines the vectors of a row's ids; None: one id per row.
      hot_id_replication: lets a TPU hold copies of rows that are looked up often; it changes no value.
      learning_rate: learning rate of this table. 0 means no training; TensorFlow treats 0 as not given.
      learning_rate_fn: global step -> learning rate; tables with the same function share one rate.
      optimization_parameters: optimizer of this table; None: the spec's.

    Raises:
      ValueError: a size is not positive, initializer or learning_rate_fn is no function, the combiner is unknown, both
        learning rates are given, or the parameters are of another type.
    """

    vocabulary_size: int
    dimension: int
    initializer: Callable[..., Any] | None = None
    combiner: Combiner | None = "mean"
    hot_id_replication: bool = False
    learning_rate: float | None = None
    learning_rate_fn: Callable[[Any], Any] | None = None
    optimization_parameters: OptimizationParameters | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.vocabulary_size, int) or self.vocabulary_size < 1:
            raise ValueError(f"vocabulary_size must >= 1. Received: {self.vocabulary_size}.")
        if not isinstance(self.dimension, int) or self.dimension < 1:
            raise ValueError(f"dimension must be a positive int. Received: {self.dimension}.")
        if self.initializer is not None and not callable(self.initializer):
            raise ValueError(f"initializer must be callable if specified. Received: {self.initializer}.")
        if self.combiner not in ("mean", "sum", "sqrtn", None):
            raise ValueError(f'combiner must be "mean", "sum", "sqrtn" or None. Received: {self.combiner}.')
        if self.learning_rate is not None and self.learning_rate_fn is not None:
            raise ValueError(
                "At most one of learning_rate and learning_rate_fn can be None. "
                f"Received: {self.learning_rate} and {self.learning_rate_fn}"
            )
        if self.learning_rate_fn is not None and not callable(self.learning_rate_fn):
            raise ValueError(f"learning_rate_fn must be callable if specified. Received: {self.learning_rate_fn}.")
        parameters = self.optimization_parameters
        if parameters is not None and not isinstance(parameters, OptimizationParameters):
            raise ValueError(
                "`optimization_parameters` must inherit from `_OptimizationParameters`. Received: "
                f"`type(optimization_parameters)`={type(parameters)}."
            )

    @property
    def initial_stddev(self) -> float:
        """Standard deviation of a table's initial rows, if the user gives no initializer."""
        return 1 / math.sqrt(self.dimension)


@dataclass(frozen=True, slots=True)
class FeatureConfig:
    """The configuration of one feature: an input whose ids read a table.

    Args:
      table_id: name of the feature's table in table_to_config_dict.
      max_sequence_length: L > 0: the feature is a sequence, cut and padded to L; 0: its vectors are combined.
      weight_key: name of the input that holds one weight per id; None: all weights are 1.

    Raises:
      ValueError: max_sequence_length is negative or not an integer.
    """

    table_id: str
    max_sequence_length: int = 0
    weight_key: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.max_sequence_length, int) or self.max_sequence_length < 0:
            raise ValueError(f"max_sequence_length must be zero or a positive int, got {self.max_sequence_length}.")
