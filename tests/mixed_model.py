"""Writes a model whose predicts read two shared tables in each way in which the native core feeds a graph.

    input                     table   how the predict reads it
    user, friend [B]          user    the row of each id
    pair [B, 2]               user    two rows, side by side
    word [B] string           user    the row of the word's hash bucket, which the graph computes
    tags, with weights        item    weighted mean; the manifest describes it
    history                   item    sum; the manifest describes it
    color [B], or its name    item    the row of each id, or of a word of a vocabulary
    dense [B, 3] float32              no table

Signature "serving_default" reads all of them but `color`, "plain" all of them but `word` and `color`, so that requests
may share a run, and "colored" reads `color`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from model_export.parity.integrity import file_sizes
from service.artifact.manifest import (
    MANIFEST_PATH,
    FeatureEntry,
    LookupFeature,
    SignatureEntry,
    VocabularyEntry,
)
from tests.tower_zoo import write_tables_manifest
from tests.toy_model import manifest_of

NUM_USERS, NUM_ITEMS = 20_000, 5_000
COLORS = ("red", "green", "blue")
TAGS = LookupFeature("tags__values", "tags__row_splits", weights="tags__weights", combiner="mean")
HISTORY = LookupFeature("history__values", "history__row_splits", combiner="sum")


def write_mixed_model(tf: Any, version: Path) -> Path:
    """Writes the model into a version folder, and returns the folder."""
    random = np.random.default_rng(11)

    def variable(*shape: int) -> Any:
        return tf.Variable(random.normal(size=shape).astype(np.float32))

    module = tf.Module()
    module.tables = {"user": variable(NUM_USERS, 8), "item": variable(NUM_ITEMS, 4)}
    module.kernels = [variable(43, 16), variable(16, 1), variable(8, 1)]
    user, item = module.tables["user"], module.tables["item"]
    first, second, third = module.kernels

    def pooled(values: Any, splits: Any, weights: Any) -> Any:
        ragged = tf.RaggedTensor.from_row_splits(values, splits)
        segments, rows = ragged.value_rowids(), ragged.nrows()
        if weights is None:
            return tf.math.unsorted_segment_sum(tf.gather(item, ragged.values), segments, rows)
        # Without any weights, each id has weight 1, as in a lookup.
        weights = tf.concat([weights, tf.ones([tf.size(values) - tf.size(weights)])], 0)
        weighted = tf.gather(item, ragged.values) * weights[:, None]
        sums = tf.math.unsorted_segment_sum(weighted, segments, rows)
        return tf.math.divide_no_nan(sums, tf.math.unsorted_segment_sum(weights, segments, rows)[:, None])

    def hidden(dense: Any, users: Any, friends: Any, pair: Any, tags: Any, history: Any) -> Any:
        pairs = tf.reshape(tf.gather(user, pair), [-1, 16])
        x = [dense, tf.gather(user, users), tf.gather(user, friends), pairs, pooled(*tags), pooled(*history, None)]
        return tf.nn.relu(tf.concat(x, 1) @ first)

    def plain(*inputs: Any) -> Any:
        dense, users, friends, pair, *ragged = inputs
        return {"score": hidden(dense, users, friends, pair, ragged[:3], ragged[3:]) @ second}

    def serving_default(*inputs: Any) -> Any:
        *others, word = inputs
        rows = tf.gather(user, tf.strings.to_hash_bucket_fast(word, NUM_USERS))
        return {"score": plain(*others)["score"] + rows @ third, "upper": tf.strings.upper(word)}

    def colored(color: Any) -> Any:
        return {"bright": tf.nn.sigmoid(tf.gather(item, color))}

    vector, floats = [None], tf.float32
    specs = [
        tf.TensorSpec([None, 3], floats, "dense"),
        *(tf.TensorSpec(vector, tf.int64, name) for name in ("user", "friend")),
        tf.TensorSpec([None, 2], tf.int64, "pair"),
        *(tf.TensorSpec(vector, tf.int64, name) for name in ("tags__values", "tags__row_splits")),
        tf.TensorSpec(vector, floats, "tags__weights"),
        *(tf.TensorSpec(vector, tf.int64, name) for name in ("history__values", "history__row_splits")),
    ]
    inputs = {
        serving_default: [*specs, tf.TensorSpec(vector, tf.string, "word")],
        plain: specs,
        colored: [tf.TensorSpec(vector, tf.int64, "color")],
    }
    signatures = {
        function.__name__: tf.function(function, input_signature=given, autograph=False)
        for function, given in inputs.items()
    }
    tf.saved_model.save(module, str(version), signatures=signatures)
    write_tables_manifest(version)
    (version / "assets.extra" / "colors.txt").write_text("".join(f"{color}\n" for color in COLORS))
    manifest = manifest_of(version)
    ragged = {"user": LookupFeature("user"), "tags": TAGS, "history": HISTORY}
    described = replace(
        manifest,
        features={
            "user": FeatureEntry("user", None),
            "tags": FeatureEntry("item", None),
            "history": FeatureEntry("item", None),
            "color": FeatureEntry("item", "colors"),
        },
        vocabularies={"colors": VocabularyEntry("assets.extra/colors.txt", len(COLORS), first_id=1, on_oov="error")},
        signatures={
            "serving_default": SignatureEntry("predict", ragged),
            "plain": SignatureEntry("predict", ragged),
            "colored": SignatureEntry("predict", {"color": LookupFeature("color")}),
        },
        files=file_sizes(version),
    )
    (version / MANIFEST_PATH).write_text(described.to_json())
    return version
