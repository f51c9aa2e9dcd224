"""Computes a layer's right answers in numpy, and builds the small models that these tests train and export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def combined(
    table: Floats, rows: Sequence[Sequence[int]], combiner: str, weights: Sequence[Sequence[float]] | None = None
) -> npt.NDArray[np.float64]:
    """Computes [B, D]: sum w v, divided by sum w (mean) or sqrt(sum w w) (sqrtn); an empty row gives zeros."""
    answer = np.zeros((len(rows), table.shape[1]))
    for number, row in enumerate(rows):
        w = np.ones(len(row)) if weights is None else np.asarray(weights[number], np.float64)
        total = w @ table[list(row)].astype(np.float64)
        divisor = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w * w).sum())}[combiner]
        answer[number] = total / divisor if divisor else 0.0
    return answer


def film_config(tf: Any, optimizers: tuple[Any, Any] = (None, None), combiner: str = "mean") -> dict[str, Any]:
    """Returns a nest of FeatureConfig for users and films; `clicks` is a sequence of 3 in the table of `seen`."""
    embedding = tf.tpu.experimental.embedding
    users = embedding.TableConfig(10, 4, name="users", optimizer=optimizers[0])
    films = embedding.TableConfig(8, 2, name="films", combiner=combiner, optimizer=optimizers[1])
    return {
        "user": embedding.FeatureConfig(table=users),
        "film": {
            "seen": embedding.FeatureConfig(table=films),
            "clicks": embedding.FeatureConfig(table=films, max_sequence_length=3),
        },
    }


def film_batch(tf: Any) -> dict[str, Any]:
    """Returns a batch of three rows, with an empty row, a repeated id, and a sequence of more than 3."""
    ragged = tf.ragged.constant
    return {
        "user": tf.constant([1, 9, 1]),
        "film": {
            "seen": ragged([[1, 1, 2], [], [7]], dtype=tf.int32),
            "clicks": ragged([[0], [1, 2, 3, 4], []], dtype=tf.int32),
        },
    }


def film_head(tf: Any, vectors: Any) -> Any:
    """Concatenates the vectors of user, films and clicks to [B, 12]."""
    clicks = tf.reshape(vectors["film"]["clicks"], [-1, 6])
    return tf.concat([vectors["user"], vectors["film"]["seen"], clicks], axis=1)


def subclass_model(tf: Any, layer: Any) -> Any:
    """Returns a subclass Keras model: the layer, then one dense unit."""

    class FilmModel(tf.keras.Model):  # type: ignore[misc]
        """The subclass model: embeddings and a dense unit."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding_layer = layer
            self.dense = tf.keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            """Computes the [B, 1] output."""
            return self.dense(film_head(tf, self.embedding_layer(inputs)))

    return FilmModel()


def functional_model(tf: Any, layer: Any) -> Any:
    """Returns a functional Keras model of the layer and one dense unit."""
    inputs = {
        "user": tf.keras.Input((), dtype=tf.int32, name="user"),
        "film": {
            "seen": tf.keras.Input((None,), dtype=tf.int32, ragged=True, name="seen"),
            "clicks": tf.keras.Input((None,), dtype=tf.int32, ragged=True, name="clicks"),
        },
    }
    vectors = tf.keras.layers.Lambda(lambda found: film_head(tf, found))(layer(inputs))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="logit")(vectors))


def loss(tf: Any) -> Any:
    """Returns a function of (labels, predictions) that computes the mean squared error."""
    return lambda labels, predictions: tf.reduce_mean((labels - predictions) ** 2)


def labels(tf: Any) -> Any:
    """Returns the labels of film_batch's rows."""
    return tf.constant([[1.0], [0.0], [2.0]])
