"""The rating model: TFRS's TPUEmbedding layer over TableConfig and FeatureConfig, and a tower of dense layers.

On a TPU the layer would put the tables into the embedding cores. On a CPU it uses TensorFlow's
serving_embedding_lookup, as the exported `lookup` signature does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_export.spec.features import ModelSpec
from model_export.tensorflow_setup import tf, tfrs
from movielens.rating_model import TrainConfig


class Dense(tf.Module):  # type: ignore[misc]
    """A dense layer, x @ kernel + bias, whose variables a checkpoint names `kernel` and `bias`."""

    def __init__(self, *, inputs: int, outputs: int, seed: int) -> None:
        super().__init__()
        stddev = (2.0 / inputs) ** 0.5
        self.kernel = tf.Variable(
            tf.random.stateless_truncated_normal([inputs, outputs], seed=[seed, 1], stddev=stddev), name="kernel"
        )
        self.bias = tf.Variable(tf.zeros([outputs]), name="bias")

    def __call__(self, x: Any) -> Any:
        return tf.matmul(x, self.kernel) + self.bias


class RatingTower(tf.Module):  # type: ignore[misc]
    """The rating model's formula: rating = mean + b_user + b_film + (p_user + W h) . q_film + mlp(all vectors).

    Column 0 of the user and film vectors is the bias b, the other columns are p and q. h is the mean vector of the
    recent films, so that a user without a trained row still gets ratings that depend on the films they watched.

    Source: the asymmetric term W h follows SVD++ (Koren, "Factorization Meets the Neighborhood", KDD 2008, eq. 15),
    with one film table for both roles.
    """

    def __init__(
        self,
        *,
        id_dim: int,
        side_dim: int,
        hidden: Sequence[int],
        mean_rating: float,
        rating_range: tuple[float, float],
        seed: int,
    ) -> None:
        super().__init__()
        self.mean_rating = tf.Variable(mean_rating, trainable=False, name="mean_rating")
        self.rating_range = tf.Variable(rating_range, trainable=False, name="rating_range")
        self.taste = tf.Variable(tf.zeros([id_dim, id_dim - 1]), name="taste")
        widths = [3 * id_dim + 2 * side_dim, *hidden]
        self.hidden = [Dense(inputs=widths[i], outputs=widths[i + 1], seed=seed + i) for i in range(len(widths) - 1)]
        self.output = Dense(inputs=widths[-1], outputs=1, seed=seed + len(widths))

    @staticmethod
    def of_spec(
        spec: ModelSpec, config: TrainConfig, *, mean_rating: float, rating_range: tuple[float, float]
    ) -> RatingTower:
        return RatingTower(
            id_dim=spec.table("film").embedding_dim,
            side_dim=spec.table("genre").embedding_dim,
            hidden=config.hidden,
            mean_rating=mean_rating,
            rating_range=rating_range,
            seed=config.seed,
        )

    def __call__(
        self,
        vectors: Mapping[str, Any],
        dropout: float = 0.0,
        dropout_seed: Any = None,
        share: tuple[int, Any] | None = None,
    ) -> Any:
        """Computes [B] float32 ratings, not clipped, from each feature's [B, D] vectors.

        Args:
          dropout: share of hidden units dropped, while training only.
          dropout_seed: [2] int64, decides which units are dropped; needed if dropout > 0.
          share: size of the whole batch, and the positions of these vectors in the batch. So the dropped units of a row
            do not depend on the number of workers that share a batch. None: the vectors are the whole batch.
        """
        user, film, recent = vectors["user_id"], vectors["film_id"], vectors["recent_films"]
        taste = user[:, 1:] + tf.matmul(recent, self.taste)
        x = tf.concat([user, film, recent, vectors["genres"], vectors["occupation"]], axis=1)
        for depth, layer in enumerate(self.hidden):
            x = tf.nn.relu(layer(x))
            if dropout:
                seed = dropout_seed + [depth, 0]
                if share is None:
                    x = tf.nn.experimental.stateless_dropout(x, dropout, seed=seed)
                else:
                    ones = tf.ones([share[0], x.shape[1]])
                    x *= tf.gather(tf.nn.experimental.stateless_dropout(ones, dropout, seed=seed), share[1])
        bias = user[:, 0] + film[:, 0]
        return self.mean_rating + bias + tf.reduce_sum(taste * film[:, 1:], axis=1) + self.output(x)[:, 0]

    def clipped(self, vectors: Mapping[str, Any]) -> Any:
        return tf.clip_by_value(self(vectors), self.rating_range[0], self.rating_range[1])


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
