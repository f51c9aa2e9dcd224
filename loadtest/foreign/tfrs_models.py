"""Builds models of TensorFlow Recommenders, which needs Keras 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtest.foreign.kinds import Ids, Padded, Words, vocabulary
from loadtest.foreign.models import ZOO, Rows
from loadtest.foreign.random_tables import spec
from loadtest.foreign.tf_keras_models import tf_keras

_USERS, _FILMS = 900, 600


def _tower(keras: Any, prefix: str, size: int) -> Any:
    return keras.Sequential(
        [keras.layers.StringLookup(vocabulary=vocabulary(prefix, size)), keras.layers.Embedding(size + 1, 16)]
    )


@ZOO.foreign({"*": Words("user", _USERS)}, keras="tf_keras")
def tfrs_retrieval(folder: Path, rows: Rows) -> None:
    """Builds the retrieval index of TFRS's tutorial: a query tower, and the ten nearest films."""
    import tensorflow as tf

    keras = tf_keras()
    import tensorflow_recommenders as tfrs

    users, films = _tower(keras, "user", rows(_USERS)), _tower(keras, "film", rows(_FILMS))
    names = tf.data.Dataset.from_tensor_slices(vocabulary("film", rows(_FILMS))).batch(100)
    index = tfrs.layers.factorized_top_k.BruteForce(users, k=10)
    index.index_from_dataset(tf.data.Dataset.zip((names, names.map(films))))
    index(tf.constant(["user1"]))
    tf.saved_model.save(index, str(folder))


@ZOO.foreign({"user_id": Words("user", _USERS), "film": Words("film", _FILMS)}, keras="tf_keras")
def tfrs_ranking(folder: Path, rows: Rows) -> None:
    """Builds the ranking model of TFRS's tutorial: two tables with string vocabularies and a tower."""
    import tensorflow as tf

    keras = tf_keras()
    import tensorflow_recommenders as tfrs

    class Ranking(tfrs.models.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.users, self.films = _tower(keras, "user", rows(_USERS)), _tower(keras, "film", rows(_FILMS))
            layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
            self.ratings = keras.Sequential(layers)

        def call(self, features: Any) -> Any:
            return self.ratings(tf.concat([self.users(features["user_id"]), self.films(features["film"])], axis=1))

    model = Ranking()
    model({"user_id": tf.constant(["user1"]), "film": tf.constant(["film2"])})
    tf.saved_model.save(model, str(folder))


@ZOO.foreign({"user": Ids(_USERS), "film": Ids(_FILMS), "seen": Padded(_FILMS, 0)}, keras="tf_keras")
def tfrs_tpu_embedding(folder: Path, rows: Rows) -> None:
    """Builds a model whose tables are in a TPUEmbedding layer, on a CPU; the features film and seen share a table."""
    import tensorflow as tf

    keras = tf_keras()
    import tensorflow_recommenders as tfrs

    embedding = tf.tpu.experimental.embedding
    users = embedding.TableConfig(rows(_USERS), 16, name="users", combiner="mean")
    films = embedding.TableConfig(rows(_FILMS), 16, name="films", combiner="mean")
    features = {
        "user": embedding.FeatureConfig(users, name="user"),
        "film": embedding.FeatureConfig(films, name="film"),
        "seen": embedding.FeatureConfig(films, name="seen"),
    }
    layer = tfrs.layers.embedding.TPUEmbedding(features, embedding.SGD(learning_rate=0.1))
    tower = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    module = tf.Module()
    module.layers = [layer, tower]

    def vectors(user: Any, film: Any, seen: Any) -> Any:
        # tf.sparse.from_dense() drops zeros. The zeros of `seen` are padding, no ids.
        ids = {"user": user, "film": film, "seen": tf.sparse.from_dense(seen)}
        return layer(ids)

    def score(user: Any, film: Any, seen: Any) -> Any:
        found = vectors(user, film, seen)
        return {"score": tower(tf.concat([found["user"], found["film"], found["seen"]], 1))}

    specs = [spec("user"), spec("film"), spec("seen", "int64", (None, 6))]
    functions = {"vectors": vectors, "score": score}
    module.functions = {key: tf.function(call, input_signature=specs) for key, call in functions.items()}
    concrete = {key: function.get_concrete_function() for key, function in module.functions.items()}
    tf.saved_model.save(module, str(folder), signatures=concrete)
