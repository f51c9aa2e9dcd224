"""Builds models of Keras 3, Keras 2 (tf_keras), Keras Recommenders and TensorFlow Recommenders, which needs Keras 2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.foreign.frameworks import keras3, save_module, tf, tf_keras
from loadtest.foreign.kinds import Kind, Numbers, ids, padded, vocabulary, words
from loadtest.foreign.models import ZOO, Keras

USERS, ITEMS, TAGS = 3000, 2000, 500
_USER, _ITEM, _PRICE = ids(USERS), ids(ITEMS), ids(100)
# Keras 3 replaces the names of inputs in a dict: it numbers the inputs in the order of their names.
FUNCTIONAL: dict[str, Kind] = {"user": _USER, "item": _ITEM, "inputs": _ITEM, "inputs_1": _USER}
SUBCLASSED: dict[str, Kind] = {
    **{"user": _USER, "item": _ITEM, "price": _PRICE},
    **{"args_0": _ITEM, "args_0_1": _PRICE, "args_0_2": _USER},
    **{"inputs": _ITEM, "inputs_1": _PRICE, "inputs_2": _USER},
}
SEQUENTIAL: dict[str, Kind] = {"*": ids(TAGS)}


def functional(keras: Any) -> Any:
    """Returns a functional model with inputs of shape [B, 1] and [B]."""
    user = keras.Input((1,), dtype="int64", name="user")
    item = keras.Input((), dtype="int64", name="item")
    user_vector = keras.layers.Flatten()(keras.layers.Embedding(USERS, 16, name="users")(user))
    item_vector = keras.layers.Embedding(ITEMS, 16, name="items")(item)
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Concatenate()([user_vector, item_vector]))
    return keras.Model({"user": user, "item": item}, keras.layers.Dense(1, activation="sigmoid")(hidden))


def subclassed(keras: Any) -> Any:
    """Returns a subclassed model with a dict of inputs of shape [B], which Keras 3 exports as float32."""

    class Ranker(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.users = keras.layers.Embedding(USERS, 16)
            self.items = keras.layers.Embedding(ITEMS, 16)
            self.hidden = keras.layers.Dense(24, activation="relu")
            self.score = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            vectors = [self.users(inputs["user"]), self.items(inputs["item"])]
            return self.score(self.hidden(tf.concat(vectors, 1))) * tf.cast(inputs["price"], tf.float32)[:, None]

    model = Ranker()
    model({name: keras.Input((), dtype="int64", name=name) for name in ("user", "item", "price")})
    return model


def sequential(keras: Any) -> Any:
    """Returns a sequential model of ids [B, 10], in which 0 is padding."""
    return keras.Sequential(
        [
            keras.Input((10,), dtype="int32"),
            keras.layers.Embedding(TAGS, 8, mask_zero=True),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(4),
        ]
    )


def _export(model: Any, folder: Path) -> None:
    model.export(str(folder), verbose=False)


def _save_module(model: Any, folder: Path) -> None:
    # Saves the TensorFlow variables, because Keras's variables would be saved as copies that the graph does not read.
    module = tf.Module()
    module.kept = [variable.value for variable in model.variables]
    by_name = {tensor.name: tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name) for tensor in _inputs_of(model)}
    call = tf.function(lambda inputs: {"answer": model(inputs if len(inputs) > 1 else [*inputs.values()][0])})
    tf.saved_model.save(module, str(folder), signatures=call.get_concrete_function(by_name))


def _save(model: Any, folder: Path) -> None:
    tf.saved_model.save(model, str(folder))


def _inputs_of(model: Any) -> list[Any]:
    keras = keras3()
    if hasattr(model, "inputs"):
        return [*model.inputs]
    return [keras.Input((), dtype="int64", name=name) for name in ("user", "item", "price")]


def _add(name: str, inputs: dict[str, Kind], network: Callable[[Any], Any], save: Any, version: Keras) -> None:
    keras = keras3 if version == "keras3" else tf_keras
    ZOO.add(name, inputs, lambda folder: save(network(keras()), folder), keras=version)


for _version, _how, _by in (
    ("keras3", "export", _export),
    ("keras3", "saved_model_save", _save_module),
    ("tf_keras", "export", lambda model, folder: model.export(str(folder))),
    ("tf_keras", "saved_model_save", _save),
    ("tf_keras", "save", lambda model, folder: model.save(str(folder), save_format="tf")),
):
    for _network, _kinds in ((functional, FUNCTIONAL), (subclassed, SUBCLASSED), (sequential, SEQUENTIAL)):
        _add(f"{_version}_{_network.__name__}_{_how}", _kinds, _network, _by, _version)  # type: ignore[arg-type]


@ZOO.foreign(FUNCTIONAL)
def keras3_saved_without_its_variables(folder: Path) -> None:
    """Builds a model with plain tf.saved_model.save; its graph reads variables that no session restores."""
    tf.saved_model.save(functional(keras3()), str(folder))


@ZOO.foreign({"history": padded(2000), "item": ids(2000)})
def keras3_attention_over_history(folder: Path) -> None:
    """Builds a model that weighs the rows of a history [B, L] by attention to the scored item."""
    keras = keras3()
    history = keras.Input((None,), dtype="int64", name="history")
    item = keras.Input((1,), dtype="int64", name="item")
    items = keras.layers.Embedding(2000, 16, mask_zero=True)
    query = items(item)
    context = keras.layers.Flatten()(keras.layers.Attention()([query, items(history)]))
    hidden = keras.layers.Concatenate()([context, keras.layers.Flatten()(query)])
    _export(keras.Model({"history": history, "item": item}, keras.layers.Dense(1)(hidden)), folder)


@ZOO.foreign({"history": padded(2000)})
def keras3_gru_over_history(folder: Path) -> None:
    """Builds a model that runs a recurrent layer over a history of items [B, 12]."""
    keras = keras3()
    history = keras.Input((12,), dtype="int64", name="history")
    vectors = keras.layers.Embedding(2000, 16, mask_zero=True)(history)
    _export(keras.Model({"history": history}, keras.layers.Dense(8)(keras.layers.GRU(16)(vectors))), folder)


@ZOO.foreign({"item": ids(2000), "day": ids(7), "dense": Numbers()})
def keras3_category_encoding(folder: Path) -> None:
    """Builds a model that concatenates a row, a one-hot day and numbers before a tower."""
    keras = keras3()
    item, day = keras.Input((), dtype="int64", name="item"), keras.Input((1,), dtype="int64", name="day")
    dense = keras.Input((5,), name="dense")
    encoded = keras.layers.CategoryEncoding(7, output_mode="one_hot")(day)
    joined = keras.layers.Concatenate()([keras.layers.Embedding(2000, 16)(item), encoded, dense])
    _export(keras.Model({"item": item, "day": day, "dense": dense}, keras.layers.Dense(1)(joined)), folder)


@ZOO.foreign({"key": ids(60)})
def unseen_lookups_tied_weights(folder: Path) -> None:
    """Builds a model that reads a table forward, and multiplies a mean of its rows with all of them."""
    keras = keras3()
    key = keras.Input((3,), dtype="int64", name="key")
    layer = keras.layers.ReversibleEmbedding(60, 8)
    hidden = keras.layers.GlobalAveragePooling1D()(layer(key))
    _export(keras.Model(key, {"hidden": hidden, "logits": layer(hidden, reverse=True)}), folder)


@ZOO.foreign({"user": words("user", 1500), "item": words("item", 800)})
def two_towers_of_keras3(folder: Path) -> None:
    """Builds a model with the signatures query, candidate and score, each of which has a StringLookup."""
    keras = keras3()

    def tower(name: str, size: int) -> Any:
        words = keras.Input((), dtype="string", name=name)
        lookup = keras.layers.StringLookup(vocabulary=vocabulary(name, size))
        vectors = keras.layers.Embedding(size + 1, 16)(lookup(words))
        return keras.Model(words, keras.layers.Dense(16, activation="relu")(vectors))

    query, candidate = tower("user", 1500), tower("item", 800)

    def score(user: Any, item: Any) -> Any:
        return {"score": tf.reduce_sum(query(user) * candidate(item), 1)}

    users, items = tf.TensorSpec([None], "string", "user"), tf.TensorSpec([None], "string", "item")
    archive = keras.export.ExportArchive()
    archive.track(query)
    archive.track(candidate)
    archive.add_endpoint("query", lambda user: {"vector": query(user)}, input_signature=[users])
    archive.add_endpoint("candidate", lambda item: {"vector": candidate(item)}, input_signature=[items])
    archive.add_endpoint("score", score, input_signature=[users, items])
    archive.write_out(str(folder), verbose=False)


def _embed_reduce(combiner: str, folder: Path) -> None:
    keras = keras3()
    import keras_rs

    tags = keras.Input((None,), dtype="int64", name="tags")
    layer = keras_rs.layers.EmbedReduce(500, 16, combiner=combiner)
    _export(keras.Model({"tags": tags}, {"vector": layer(tags)}), folder)


for _combiner in ("sum", "mean", "sqrtn"):
    ZOO.add(f"keras_rs_embed_reduce_{_combiner}", {"tags": ids(500)}, partial(_embed_reduce, _combiner))


@ZOO.foreign({"user": ids(3000), "film": ids(2000), "seen": ids(2000)})
def keras_rs_distributed_embedding(folder: Path) -> None:
    """Builds a model with a tower and a DistributedEmbedding layer: two tables, and three features that read them."""
    keras = keras3()
    import keras_rs

    layers = keras_rs.layers
    users = layers.TableConfig("users", 3000, 16, placement="default_device", combiner="mean")
    films = layers.TableConfig("films", 2000, 16, placement="default_device", combiner="mean")
    # Arguments of FeatureConfig: name, table, input shape, output shape. The batch size in the shapes matters only in
    # training.
    features = {
        "user": layers.FeatureConfig("user", users, (8, 1), (8, 16)),
        "film": layers.FeatureConfig("film", films, (8, 1), (8, 16)),
        "seen": layers.FeatureConfig("seen", films, (8, 6), (8, 16)),
    }
    inputs = {name: keras.Input((6,) if name == "seen" else (1,), dtype="int64", name=name) for name in features}
    vectors = layers.DistributedEmbedding(features)(inputs)
    joined = keras.layers.Concatenate()([vectors[name] for name in features])
    _export(keras.Model(inputs, keras.layers.Dense(1)(joined)), folder)


@ZOO.foreign({"tags": padded(500)}, keras="tf_keras")
def tf_keras_gru(folder: Path) -> None:
    """Builds a model that runs a recurrent layer over ids [B, 12]."""
    keras = tf_keras()
    tags = keras.Input((12,), dtype="int64", name="tags")
    vectors = keras.layers.Embedding(500, 8, mask_zero=True)(tags)
    _save(keras.Model({"tags": tags}, keras.layers.Dense(2)(keras.layers.GRU(8)(vectors))), folder)


_USERS, _FILMS = 900, 600


def _tower(keras: Any, prefix: str, size: int) -> Any:
    return keras.Sequential(
        [keras.layers.StringLookup(vocabulary=vocabulary(prefix, size)), keras.layers.Embedding(size + 1, 16)]
    )


@ZOO.foreign({"*": words("user", _USERS)}, keras="tf_keras")
def tfrs_retrieval(folder: Path) -> None:
    """Builds the retrieval index of TFRS's tutorial: a query tower, and the ten nearest films."""
    keras = tf_keras()
    import tensorflow_recommenders as tfrs

    users, films = _tower(keras, "user", _USERS), _tower(keras, "film", _FILMS)
    names = tf.data.Dataset.from_tensor_slices(vocabulary("film", _FILMS)).batch(100)
    index = tfrs.layers.factorized_top_k.BruteForce(users, k=10)
    index.index_from_dataset(tf.data.Dataset.zip((names, names.map(films))))
    index(tf.constant(["user1"]))
    tf.saved_model.save(index, str(folder))


@ZOO.foreign({"user_id": words("user", _USERS), "film": words("film", _FILMS)}, keras="tf_keras")
def tfrs_ranking(folder: Path) -> None:
    """Builds the ranking model of TFRS's tutorial: two tables with string vocabularies and a tower."""
    keras = tf_keras()
    import tensorflow_recommenders as tfrs

    class Ranking(tfrs.models.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.users, self.films = _tower(keras, "user", _USERS), _tower(keras, "film", _FILMS)
            layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
            self.ratings = keras.Sequential(layers)

        def call(self, features: Any) -> Any:
            return self.ratings(tf.concat([self.users(features["user_id"]), self.films(features["film"])], axis=1))

    model = Ranking()
    model({"user_id": tf.constant(["user1"]), "film": tf.constant(["film2"])})
    tf.saved_model.save(model, str(folder))


@ZOO.foreign({"user": ids(_USERS), "film": ids(_FILMS), "seen": padded(_FILMS)}, keras="tf_keras")
def tfrs_tpu_embedding(folder: Path) -> None:
    """Builds a model whose tables are in a TPUEmbedding layer, on a CPU; the features film and seen share a table."""
    keras = tf_keras()
    import tensorflow_recommenders as tfrs

    embedding = tf.tpu.experimental.embedding
    users = embedding.TableConfig(_USERS, 16, name="users", combiner="mean")
    films = embedding.TableConfig(_FILMS, 16, name="films", combiner="mean")
    features = {
        "user": embedding.FeatureConfig(users, name="user"),
        "film": embedding.FeatureConfig(films, name="film"),
        "seen": embedding.FeatureConfig(films, name="seen"),
    }
    layer = tfrs.layers.embedding.TPUEmbedding(features, embedding.SGD(learning_rate=0.1))
    tower = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])

    def vectors(user: Any, film: Any, seen: Any) -> Any:
        # tf.sparse.from_dense() drops zeros. The zeros of `seen` are padding, no ids.
        ids = {"user": user, "film": film, "seen": tf.sparse.from_dense(seen)}
        return layer(ids)

    def score(user: Any, film: Any, seen: Any) -> Any:
        found = vectors(user, film, seen)
        return {"score": tower(tf.concat([found["user"], found["film"], found["seen"]], 1))}

    save_module(folder, {"vectors": vectors, "score": score}, [layer, tower], seen=("int64", [None, 6]))
