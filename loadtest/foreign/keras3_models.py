"""Builds Keras 3 models of many kinds; some are saved both by model.export() and by tf.saved_model.save."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.foreign.keras_networks import FUNCTIONAL, SEQUENTIAL, SUBCLASSED, functional, sequential, subclassed
from loadtest.foreign.kinds import Ids, Numbers, Padded
from loadtest.foreign.models import SEED, ZOO, Rows


def keras3() -> Any:
    """Imports Keras 3 with the TensorFlow backend, and sets the random seed."""
    import keras

    assert keras.backend.backend() == "tensorflow"
    keras.utils.set_random_seed(SEED)
    return keras


def _export(model: Any, folder: Path) -> None:
    model.export(str(folder), verbose=False)


def _save(model: Any, folder: Path) -> None:
    import tensorflow as tf

    # Saves the TensorFlow variables, because Keras's variables would be saved as copies that the graph does not read.
    module = tf.Module()
    module.kept = [variable.value for variable in model.variables]
    by_name = {tensor.name: tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name) for tensor in _inputs_of(model)}
    call = tf.function(lambda inputs: {"answer": model(inputs if len(inputs) > 1 else [*inputs.values()][0])})
    tf.saved_model.save(module, str(folder), signatures=call.get_concrete_function(by_name))


def _inputs_of(model: Any) -> list[Any]:
    keras = keras3()
    if hasattr(model, "inputs"):
        return [*model.inputs]
    return [keras.Input((), dtype="int64", name=name) for name in ("user", "item", "price")]


def _built_by(network: Callable[[Any, Rows], Any], save: Callable[[Any, Path], None]) -> Callable[[Path, Rows], None]:
    return lambda folder, rows: save(network(keras3(), rows), folder)


for _save_name, _save_by in {"export": _export, "saved_model_save": _save}.items():
    for _network, _inputs in ((functional, FUNCTIONAL), (subclassed, SUBCLASSED), (sequential, SEQUENTIAL)):
        ZOO.add(f"keras3_{_network.__name__}_{_save_name}", _inputs, _built_by(_network, _save_by))


@ZOO.foreign(FUNCTIONAL)
def keras3_saved_without_its_variables(folder: Path, rows: Rows) -> None:
    """Builds a model with plain tf.saved_model.save; its graph reads variables that no session restores."""
    import tensorflow as tf

    tf.saved_model.save(functional(keras3(), rows), str(folder))


@ZOO.foreign({"item": Ids(2000)})
def keras3_embedding_of_one_id(folder: Path, rows: Rows) -> None:
    """Builds a model of ids [B] that returns the looked-up rows themselves."""
    keras = keras3()
    item = keras.Input((), dtype="int64", name="item")
    _export(keras.Model({"item": item}, keras.layers.Embedding(rows(2000), 16)(item)), folder)


@ZOO.foreign({"item": Ids(2000)})
def keras3_embedding_of_a_column(folder: Path, rows: Rows) -> None:
    """Builds a model of ids [B, 1] that returns rows [B, 1, D], and flat rows [B, D]."""
    keras = keras3()
    item = keras.Input((1,), dtype="int32", name="item")
    vectors = keras.layers.Embedding(rows(2000), 16)(item)
    _export(keras.Model({"item": item}, {"vectors": vectors, "flat": keras.layers.Flatten()(vectors)}), folder)


@ZOO.foreign({"tags": Padded(500, 0)})
def keras3_masked_mean(folder: Path, rows: Rows) -> None:
    """Builds a model without a tower that returns the mean of the rows of all ids that are not 0."""
    keras = keras3()
    tags = keras.Input((None,), dtype="int64", name="tags")
    vectors = keras.layers.Embedding(rows(500), 8, mask_zero=True)(tags)
    _export(keras.Model({"tags": tags}, {"tags": keras.layers.GlobalAveragePooling1D()(vectors)}), folder)


@ZOO.foreign({"seen": Ids(2000), "offered": Ids(2000)})
def keras3_shared_embedding(folder: Path, rows: Rows) -> None:
    """Builds a model with two inputs that read one table; it returns the dot product of their rows."""
    keras = keras3()
    seen, offered = (keras.Input((), dtype="int64", name=name) for name in ("seen", "offered"))
    items = keras.layers.Embedding(rows(2000), 16)
    likeness = keras.layers.Dot(axes=1)([items(seen), items(offered)])
    _export(keras.Model({"seen": seen, "offered": offered}, {"likeness": likeness}), folder)


@ZOO.foreign({"user": Ids(3000), "item": Ids(2000)})
def keras3_outputs_of_two_tables(folder: Path, rows: Rows) -> None:
    """Builds a model that returns the rows of two tables, each in an output of its own."""
    keras = keras3()
    user, item = (keras.Input((), dtype="int64", name=name) for name in ("user", "item"))
    outputs = {
        "user_vector": keras.layers.Embedding(rows(3000), 32)(user),
        "item_vector": keras.layers.Embedding(rows(2000), 16)(item),
    }
    _export(keras.Model({"user": user, "item": item}, outputs), folder)


@ZOO.foreign({"history": Padded(2000, 0), "item": Ids(2000)})
def keras3_attention_over_history(folder: Path, rows: Rows) -> None:
    """Builds a model that weighs the rows of a history [B, L] by attention to the scored item."""
    keras = keras3()
    history = keras.Input((None,), dtype="int64", name="history")
    item = keras.Input((1,), dtype="int64", name="item")
    items = keras.layers.Embedding(rows(2000), 16, mask_zero=True)
    query = items(item)
    context = keras.layers.Flatten()(keras.layers.Attention()([query, items(history)]))
    hidden = keras.layers.Concatenate()([context, keras.layers.Flatten()(query)])
    _export(keras.Model({"history": history, "item": item}, keras.layers.Dense(1)(hidden)), folder)


@ZOO.foreign({"history": Padded(2000, 0)})
def keras3_gru_over_history(folder: Path, rows: Rows) -> None:
    """Builds a model that runs a recurrent layer over a history of items [B, 12]."""
    keras = keras3()
    history = keras.Input((12,), dtype="int64", name="history")
    vectors = keras.layers.Embedding(rows(2000), 16, mask_zero=True)(history)
    _export(keras.Model({"history": history}, keras.layers.Dense(8)(keras.layers.GRU(16)(vectors))), folder)


@ZOO.foreign({"item": Ids(2000), "day": Ids(7), "dense": Numbers()})
def keras3_category_encoding(folder: Path, rows: Rows) -> None:
    """Builds a model that concatenates a row, a one-hot day and numbers before a tower."""
    keras = keras3()
    item, day = keras.Input((), dtype="int64", name="item"), keras.Input((1,), dtype="int64", name="day")
    dense = keras.Input((5,), name="dense")
    encoded = keras.layers.CategoryEncoding(7, output_mode="one_hot")(day)
    joined = keras.layers.Concatenate()([keras.layers.Embedding(rows(2000), 16)(item), encoded, dense])
    _export(keras.Model({"item": item, "day": day, "dense": dense}, keras.layers.Dense(1)(joined)), folder)
