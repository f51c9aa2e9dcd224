"""Defines EmbeddingConfigSpec as in TensorFlow 2.15: an estimator's tables, and how they are trained.

>>> EmbeddingConfigSpec(partition_strategy="div")
Traceback (most recent call last):
  ...
ValueError: Exactly one of `feature_columns` and the pair `feature_to_config_dict` and `table_to_config_dict` must be \
be specified.

Source: tensorflow_estimator/python/estimator/tpu/_tpu_estimator_embedding.py at v2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from model_export.spec.optimization_parameters import OptimizationParameters
from model_export.spec.table_config import FeatureConfig, TableConfig

_TENSORFLOW = "tensorflow.python."
_V1, _V2 = "feature_column.feature_column", "feature_column.feature_column_v2"
_TPU_V1, _TPU_V2 = "tpu.feature_column", "tpu.feature_column_v2"

_CLASSES = (
    (_V1, "_NumericColumn"),
    (_V2, "NumericColumn"),
    (_TPU_V1, "_TPUEmbeddingColumn"),
    (_TPU_V1, "_TPUSharedEmbeddingColumn"),
    (_TPU_V2, "_TPUEmbeddingColumnV2"),
    (_TPU_V2, "_TPUSharedEmbeddingColumnV2"),
    (_V1, "_EmbeddingColumn"),
    (_V2, "EmbeddingColumn"),
    (_V1, "_SharedEmbeddingColumn"),
)
SUPPORTED_COLUMNS = tuple(_TENSORFLOW + ".".join(names) for names in _CLASSES)
"""Column classes that an EmbeddingConfigSpec accepts; this package's columns are subclasses of them."""


def uses_tensor_core(column: Any) -> bool:
    device = getattr(column, "embedding_lookup_device", None) or getattr(column, "_embedding_lookup_device", None)
    # TensorFlow stores a column's lookup device as an enum; its members have the names of the devices in upper case.
    return str(getattr(device, "name", device)).lower() == "tpu_tensor_core"


PartitionStrategy = Literal["div", "mod"]


@dataclass(frozen=True, slots=True)
class EmbeddingConfigSpec:
    """Declaration of an estimator's embedding tables (by columns, or features and tables) and of their training.

    Args:
      feature_columns: embedding columns of this package or of TensorFlow; numeric columns are accepted and ignored.
      optimization_parameters: optimizer of every table; if the caller passes the two dicts, a table's own optimizer
        has precedence.
      clipping_limit: gradients of all tables are cut to [-clipping_limit, clipping_limit].
      pipeline_execution_with_tensor_core: a step's lookups see the tables as they were before the previous step's
        update, as on a TPU that overlaps the two.
      experimental_gradient_multiplier_fn: global step -> factor on the gradients of all tables.
      feature_to_config_dict, table_to_config_dict: feature name -> FeatureConfig, and table name -> TableConfig; the
        caller passes either both dicts or feature_columns.
      partition_strategy: placement of rows on the hosts of a TPU. It does not change training on a CPU; exports refuse
        "mod".
      profile_data_directory: folder for statistics of the looked-up ids; None: no statistics.

    Raises:
      ValueError: the caller does not pass exactly one of feature_columns and the pair of dicts; partition_strategy is
        neither "div" nor "mod"; optimization_parameters has the wrong type, or is missing beside feature_columns; a
        feature lacks its table, or a table has no feature; clipping_limit is not positive.
      TypeError: a column, a value of a dict or the multiplier function has the wrong type.
    """

    feature_columns: Sequence[Any] | None = None
    optimization_parameters: OptimizationParameters | None = None
    clipping_limit: float | None = None
    pipeline_execution_with_tensor_core: bool = False
    experimental_gradient_multiplier_fn: Callable[[Any], Any] | None = None
    feature_to_config_dict: Mapping[str, FeatureConfig] | None = None
    table_to_config_dict: Mapping[str, TableConfig] | None = None
    partition_strategy: PartitionStrategy = "div"
    profile_data_directory: str | None = None

    def __post_init__(self) -> None:
        features, tables = self.feature_to_config_dict, self.table_to_config_dict
        # If feature_columns comes with one of feature_to_config_dict and table_to_config_dict, TensorFlow 2.15 ignores
        # that dict without an error; this class raises one.
        if (features or tables) if self.feature_columns else not (features and tables):
            raise ValueError(
                "Exactly one of `feature_columns` and the pair `feature_to_config_dict` and `table_to_config_dict` "
                "must be be specified."
            )
        if self.partition_strategy not in get_args(PartitionStrategy):
            raise ValueError(f'Invalid partition_strategy {self.partition_strategy}. Must be one of "mod" or "div".')
        if self.feature_columns:
            object.__setattr__(self, "feature_columns", tuple(self.feature_columns))
            _check_columns(self.feature_columns)
        parameters = self.optimization_parameters
        if not isinstance(parameters, OptimizationParameters) and (self.feature_columns or parameters is not None):
            raise ValueError(
                f"optimization_parameters must be an instance of type {get_args(OptimizationParameters)}. "
                f"Got {type(parameters)}."
            )
        if features and tables:
            _check_dicts(features, tables)
        if self.clipping_limit is not None and not self.clipping_limit > 0:
            raise ValueError(f"clipping_limit is {self.clipping_limit}, expected a number above 0, or None")
        multiplier = self.experimental_gradient_multiplier_fn
        if multiplier is not None and not callable(multiplier):
            raise TypeError(f"experimental_gradient_multiplier_fn is {multiplier!r}, expected a function of the step")

    @property
    def tensor_core_feature_columns(self) -> tuple[Any, ...]:
        """The spec's feature columns with lookups on the tensor core; TensorFlow 2.15's feature_columns lacks them."""
        return tuple(column for column in self.feature_columns or () if uses_tensor_core(column))

    @property
    def embedding_core_feature_columns(self) -> tuple[Any, ...]:
        """The spec's feature columns that are not looked up on the tensor core."""
        return tuple(column for column in self.feature_columns or () if not uses_tensor_core(column))

    def parameters_of(self, config: TableConfig) -> OptimizationParameters:
        """Returns the optimization parameters of a table of table_to_config_dict.

        Raises:
          ValueError: neither the table nor the spec has optimization parameters.
        """
        parameters = config.optimization_parameters or self.optimization_parameters
        if parameters is None:
            raise ValueError("`optimization_parameters` is missing.")
        return parameters


def _check_columns(columns: Sequence[Any]) -> None:
    for column in columns:
        if not any(f"{base.__module__}.{base.__name__}" in SUPPORTED_COLUMNS for base in type(column).__mro__):
            raise TypeError(f"All feature columns must be supported types in {SUPPORTED_COLUMNS}. Got {type(column)}")


def _check_dicts(features: Mapping[str, FeatureConfig], tables: Mapping[str, TableConfig]) -> None:
    for name, feature in features.items():
        if not isinstance(feature, FeatureConfig):
            raise TypeError(f"Config for feature {name} must be of type `FeatureConfig`. Got {type(feature)}")
        if feature.table_id not in tables:
            raise ValueError(
                f"Feature {name} refers to table {feature.table_id} which is not in the table_to_config_dict."
            )
    for name, table in tables.items():
        if not isinstance(table, TableConfig):
            raise TypeError(f"Config for table {name} must be of type `TableConfig`. Got {type(table)}")
    unused = set(tables) - {feature.table_id for feature in features.values()}
    if unused:
        raise ValueError(
            f"`table_to_config_dict` specifies table that is not used in `feature_to_config_dict`: {unused}."
        )
