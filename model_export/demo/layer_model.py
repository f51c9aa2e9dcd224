"""The rating model for training: TFRS's TPUEmbedding layer over TableConfig and FeatureConfig, and a tower of dense
layers.

On a TPU the layer would put the tables into the embedding cores. On a CPU it uses TensorFlow's
serving_embedding_lookup, as the exported `lookup` signature does.
"""

from __future__ import annotations

from typing import Any

from model_export.demo.config import TrainConfig
from model_export.demo.tower import RatingTower
from model_export.spec.features import ModelSpec
from model_export.tensorflow_setup import tf, tfrs

# The key of a table in a checkpoint of this model, which names attributes of the TPUEmbedding layer.
TABLE_KEY = "model/embedding/_tpu_embedding/{}/.ATTRIBUTES/VARIABLE_VALUE"

embedding = tf.tpu.experimental.embedding


def feature_config(spec: ModelSpec, seed: int = 0) -> dict[str, Any]:
    """Returns TensorFlow's FeatureConfig of each feature; features of one table share one TableConfig object."""
    tables = {
        table.name: embedding.TableConfig(
            vocabulary_size=table.vocabulary_size,
            dim=table.embedding_dim,
            initializer=tf.initializers.TruncatedNormal(stddev=table.initial_stddev, seed=seed + index),
            combiner=table.combiner,
            name=table.name,
        )
        for index, table in enumerate(spec.tables)
    }
    return {
        feature.name: embedding.FeatureConfig(table=tables[feature.table], name=feature.name)
        for feature in spec.features
    }


class RatingModel(tf.Module):  # type: ignore[misc]
    """The rating model: a TPUEmbedding layer and a tower of dense layers. Without table_optimizer it has no slot
    variables.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: TrainConfig,
        *,
        mean_rating: float,
        rating_range: tuple[float, float],
        table_optimizer: Any,
    ) -> None:
        super().__init__()
        self.embedding = tfrs.layers.embedding.TPUEmbedding(feature_config(spec, config.seed), table_optimizer)
        self.tower = RatingTower.of_spec(spec, config, mean_rating=mean_rating, rating_range=rating_range)
        # The first call of the TPUEmbedding layer creates its tables, into which a checkpoint can then be restored.
        self.embedding(
            {
                f.name: tf.ragged.constant([[0]], dtype=tf.int64) if f.is_ragged else tf.zeros([1], tf.int64)
                for f in spec.features
            }
        )

    @property
    def tables(self) -> dict[str, Any]:
        return {config.name: variable for config, variable in self.embedding.embedding_tables.items()}
