"""Builds models of Keras Recommenders (keras-rs) on Keras 3."""

from __future__ import annotations

from pathlib import Path

from loadtest.foreign.keras3_models import keras3
from loadtest.foreign.kinds import Ids
from loadtest.foreign.models import ZOO, Rows


def _add_embed_reduce(combiner: str) -> None:
    def build(folder: Path, rows: Rows) -> None:
        keras = keras3()
        import keras_rs

        tags = keras.Input((None,), dtype="int64", name="tags")
        layer = keras_rs.layers.EmbedReduce(rows(500), 16, combiner=combiner)
        keras.Model({"tags": tags}, {"vector": layer(tags)}).export(str(folder), verbose=False)

    ZOO.add(f"keras_rs_embed_reduce_{combiner}", {"tags": Ids(500)}, build)


for _combiner in ("sum", "mean", "sqrtn"):
    _add_embed_reduce(_combiner)


@ZOO.foreign({"user": Ids(3000), "film": Ids(2000), "seen": Ids(2000)})
def keras_rs_distributed_embedding(folder: Path, rows: Rows) -> None:
    """Builds a model with a tower and a DistributedEmbedding layer: two tables, and three features that read them."""
    keras = keras3()
    import keras_rs

    layers = keras_rs.layers
    users = layers.TableConfig("users", rows(3000), 16, placement="default_device", combiner="mean")
    films = layers.TableConfig("films", rows(2000), 16, placement="default_device", combiner="mean")
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
    keras.Model(inputs, keras.layers.Dense(1)(joined)).export(str(folder), verbose=False)
