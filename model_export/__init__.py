"""Trains TPU-embedding models and exports them as stock SavedModels. It imports no module of the server's wire formats.

The public names are listed here and imported on first use (docs/adr/0043), because most of them need TensorFlow, whose
import takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model_export.adoption.adopt import adopt
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns
    from model_export.compaction.compact import compact
    from model_export.compaction.deltas import write_delta
    from model_export.errors import ExportError
    from model_export.estimator.checkpoints import WarmStartSettings
    from model_export.estimator.estimator import EmbeddingEstimator
    from model_export.estimator.estimator_spec import (
        ClassificationOutput,
        EstimatorSpec,
        ExportSavedModelApiVersion,
        ModeKeys,
        PredictOutput,
        RegressionOutput,
    )
    from model_export.estimator.export_source import EstimatorSource
    from model_export.estimator.receivers import (
        ServingInputReceiver,
        TensorServingInputReceiver,
        build_parsing_serving_input_receiver_fn,
        build_raw_serving_input_receiver_fn,
    )
    from model_export.estimator.run_config import RunConfig, TPUConfig
    from model_export.export_model import export
    from model_export.importers.array_store import describe_stacked_tables
    from model_export.importers.import_tables import import_tables
    from model_export.layers.checkpoints import restore
    from model_export.layers.export_source import LayerSource
    from model_export.layers.keras_rs import KerasRsSource
    from model_export.layers.separate_optimizers import apply_gradients, split_variables, train_step
    from model_export.layers.tpu_embedding import TPUEmbedding, tpu_strategy
    from model_export.parity.verify import verify_artifact
    from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
    from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
    from model_export.spec.optimization_parameters import (
        AdagradParameters,
        AdamParameters,
        FtrlParameters,
        MomentumParameters,
        StochasticGradientDescentParameters,
    )
    from model_export.spec.table_config import FeatureConfig, TableConfig
    from model_export.statistics.files import read_statistics

_HOMES = {
    "AdagradParameters": "spec.optimization_parameters",
    "AdamParameters": "spec.optimization_parameters",
    "ClassificationOutput": "estimator.estimator_spec",
    "EmbeddingConfigSpec": "spec.embedding_config_spec",
    "EmbeddingEstimator": "estimator.estimator",
    "EstimatorSource": "estimator.export_source",
    "EstimatorSpec": "estimator.estimator_spec",
    "ExportError": "errors",
    "ExportSavedModelApiVersion": "estimator.estimator_spec",
    "FeatureConfig": "spec.table_config",
    "FeatureSpec": "spec.features",
    "FtrlParameters": "spec.optimization_parameters",
    "KerasRsSource": "layers.keras_rs",
    "LayerSource": "layers.export_source",
    "ModeKeys": "estimator.estimator_spec",
    "ModelSpec": "spec.features",
    "MomentumParameters": "spec.optimization_parameters",
    "PredictOutput": "estimator.estimator_spec",
    "RegressionOutput": "estimator.estimator_spec",
    "RunConfig": "estimator.run_config",
    "ServingInputReceiver": "estimator.receivers",
    "StochasticGradientDescentParameters": "spec.optimization_parameters",
    "TPUConfig": "estimator.run_config",
    "TPUEmbedding": "layers.tpu_embedding",
    "TableConfig": "spec.table_config",
    "TableSpec": "spec.features",
    "TensorServingInputReceiver": "estimator.receivers",
    "VocabularySpec": "spec.features",
    "WarmStartSettings": "estimator.checkpoints",
    "adopt": "adoption.adopt",
    "apply_gradients": "layers.separate_optimizers",
    "build_parsing_serving_input_receiver_fn": "estimator.receivers",
    "build_raw_serving_input_receiver_fn": "estimator.receivers",
    "compact": "compaction.compact",
    "describe_stacked_tables": "importers.array_store",
    "embedding_column": "columns.embedding_column",
    "export": "export_model",
    "import_tables": "importers.import_tables",
    "read_statistics": "statistics.files",
    "restore": "layers.checkpoints",
    "shared_embedding_columns": "columns.embedding_column",
    "split_variables": "layers.separate_optimizers",
    "tpu_strategy": "layers.tpu_embedding",
    "train_step": "layers.separate_optimizers",
    "verify_artifact": "parity.verify",
    "write_delta": "compaction.deltas",
}
# Classes of optimizers that old TPU scripts import. Each raises an error that names the class to use instead. __all__
# leaves them out.
_REFUSED = dict.fromkeys(
    (
        "AdagradMomentumParameters",
        "FrequencyEstimatorParameters",
        "ProximalAdagradParameters",
        "ProximalYogiParameters",
        "RMSPropParameters",
    ),
    "spec.optimization_parameters",
)

__all__ = [
    "AdagradParameters",
    "AdamParameters",
    "ClassificationOutput",
    "EmbeddingConfigSpec",
    "EmbeddingEstimator",
    "EstimatorSource",
    "EstimatorSpec",
    "ExportError",
    "ExportSavedModelApiVersion",
    "FeatureConfig",
    "FeatureSpec",
    "FtrlParameters",
    "KerasRsSource",
    "LayerSource",
    "ModeKeys",
    "ModelSpec",
    "MomentumParameters",
    "PredictOutput",
    "RegressionOutput",
    "RunConfig",
    "ServingInputReceiver",
    "StochasticGradientDescentParameters",
    "TPUConfig",
    "TPUEmbedding",
    "TableConfig",
    "TableSpec",
    "TensorServingInputReceiver",
    "VocabularySpec",
    "WarmStartSettings",
    "adopt",
    "apply_gradients",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
    "compact",
    "describe_stacked_tables",
    "embedding_column",
    "export",
    "import_tables",
    "read_statistics",
    "restore",
    "shared_embedding_columns",
    "split_variables",
    "tpu_strategy",
    "train_step",
    "verify_artifact",
    "write_delta",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name) or _REFUSED.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
