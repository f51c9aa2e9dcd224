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


# Names by the module that defines them.
_NAMES = {
    "adoption.adopt": "adopt",
    "columns.embedding_column": "embedding_column shared_embedding_columns",
    "compaction.compact": "compact",
    "compaction.deltas": "write_delta",
    "errors": "ExportError",
    "estimator.checkpoints": "WarmStartSettings",
    "estimator.estimator": "EmbeddingEstimator",
    "estimator.estimator_spec": "ClassificationOutput EstimatorSpec ExportSavedModelApiVersion ModeKeys "
    "PredictOutput RegressionOutput",
    "estimator.export_source": "EstimatorSource",
    "estimator.receivers": "ServingInputReceiver TensorServingInputReceiver "
    "build_parsing_serving_input_receiver_fn build_raw_serving_input_receiver_fn",
    "estimator.run_config": "RunConfig TPUConfig",
    "export_model": "export",
    "importers.array_store": "describe_stacked_tables",
    "importers.import_tables": "import_tables",
    "layers.checkpoints": "restore",
    "layers.export_source": "LayerSource",
    "layers.keras_rs": "KerasRsSource",
    "layers.separate_optimizers": "apply_gradients split_variables train_step",
    "layers.tpu_embedding": "TPUEmbedding tpu_strategy",
    "parity.verify": "verify_artifact",
    "spec.embedding_config_spec": "EmbeddingConfigSpec",
    "spec.features": "FeatureSpec ModelSpec TableSpec VocabularySpec",
    "spec.optimization_parameters": "AdagradParameters AdamParameters FtrlParameters MomentumParameters "
    "StochasticGradientDescentParameters",
    "spec.table_config": "FeatureConfig TableConfig",
    "statistics.files": "read_statistics",
}
# Classes of optimizers that old TPU scripts import. Each raises an error that names the class to use instead. __all__
# leaves them out.
_REFUSED = (
    "AdagradMomentumParameters FrequencyEstimatorParameters ProximalAdagradParameters ProximalYogiParameters "
    "RMSPropParameters"
)
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
_HOMES |= dict.fromkeys(_REFUSED.split(), "spec.optimization_parameters")

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
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
