"""Builds Keras 2 (tf_keras) models; each is saved by model.export(), tf.saved_model.save and model.save."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.foreign.keras_networks import FUNCTIONAL, SEQUENTIAL, SUBCLASSED, functional, sequential, subclassed
from loadtest.foreign.kinds import Padded, Words, vocabulary
from loadtest.foreign.models import SEED, ZOO, Rows


def tf_keras() -> Any:
    """Imports Keras 2 (tf_keras) and sets its random seed."""
    import tf_keras as keras

    keras.utils.set_random_seed(SEED)
    return keras


def _export(model: Any, folder: Path) -> None:
    model.export(str(folder))


def _saved_model_save(model: Any, folder: Path) -> None:
    import tensorflow as tf

    tf.saved_model.save(model, str(folder))


def _save(model: Any, folder: Path) -> None:
    model.save(str(folder), save_format="tf")


def _built_by(network: Callable[[Any, Rows], Any], save: Callable[[Any, Path], None]) -> Callable[[Path, Rows], None]:
    return lambda folder, rows: save(network(tf_keras(), rows), folder)


for _save_name, _save_by in {"export": _export, "saved_model_save": _saved_model_save, "save": _save}.items():
    for _network, _inputs in ((functional, FUNCTIONAL), (subclassed, SUBCLASSED), (sequential, SEQUENTIAL)):
        _name = f"tf_keras_{_network.__name__}_{_save_name}"
        ZOO.add(_name, _inputs, _built_by(_network, _save_by), keras="tf_keras")


@ZOO.foreign({"word": Words("word", 800), "tags": Padded(500, 0)}, keras="tf_keras")
def tf_keras_string_lookup_and_masked_mean(folder: Path, rows: Rows) -> None:
    """Builds a model that concatenates the row of a string with a masked mean."""
    keras = tf_keras()
    word, tags = keras.Input((), dtype="string", name="word"), keras.Input((6,), dtype="int64", name="tags")
    lookup = keras.layers.StringLookup(vocabulary=vocabulary("word", rows(800)))
    word_vector = keras.layers.Embedding(rows(800) + 1, 8)(lookup(word))
    vectors = keras.layers.Embedding(rows(500), 8, mask_zero=True)(tags)
    joined = keras.layers.Concatenate()([word_vector, keras.layers.GlobalAveragePooling1D()(vectors)])
    _saved_model_save(keras.Model({"word": word, "tags": tags}, keras.layers.Dense(1)(joined)), folder)


@ZOO.foreign({"tags": Padded(500, 0)}, keras="tf_keras")
def tf_keras_gru(folder: Path, rows: Rows) -> None:
    """Builds a model that runs a recurrent layer over ids [B, 12]."""
    keras = tf_keras()
    tags = keras.Input((12,), dtype="int64", name="tags")
    vectors = keras.layers.Embedding(rows(500), 8, mask_zero=True)(tags)
    _saved_model_save(keras.Model({"tags": tags}, keras.layers.Dense(2)(keras.layers.GRU(8)(vectors))), folder)
