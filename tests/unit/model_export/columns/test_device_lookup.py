"""Devices: inside a TPU context the lookup is TensorFlow's, and a padded column can ask for the CPU's lookup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.model_export.columns.column_cases import (
    SAFE_ROWS,
    K,
    expected,
    sparse,
    table_initializer,
    tpu_context,
)

pytestmark = pytest.mark.tf


def both(api: Any, device: str | None) -> list[Any]:
    """Returns two columns whose lookups are on a device: one with its own table, and one with a shared table."""
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    arguments: dict[str, Any] = {"initializer": table_initializer, "embedding_lookup_device": device}
    if device == "tpu_tensor_core":
        arguments["tensor_core_shape"] = [None, K]
    return [
        api.embedding_column(fc.categorical_column_with_identity("i", 6), 3, **arguments),
        *api.shared_embedding_columns([fc.categorical_column_with_identity("j", 6)], 3, **arguments),
    ]


def test_a_padded_column_looks_up_as_a_cpu_does_when_asked() -> None:
    from model_export.columns import embedding_column as ours
    from model_export.columns.device_lookup import cpu_lookups
    from model_export.tensorflow_setup import tf

    features = {"i": sparse(SAFE_ROWS, tf.int64), "j": sparse(SAFE_ROWS, tf.int64)}
    layer = tf.keras.layers.DenseFeatures(both(ours, "tpu_tensor_core"))
    on_cpu, padded = expected(SAFE_ROWS, "mean"), expected(SAFE_ROWS, "mean", width=K)
    assert np.abs(on_cpu - padded).max() > 0.01
    with cpu_lookups():
        np.testing.assert_allclose(layer(features), np.hstack([on_cpu, on_cpu]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer(features), np.hstack([padded, padded]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_serving_on_a_tpu_looks_up_on_its_host(device: str | None) -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    features = {"i": sparse(SAFE_ROWS, tf.int64), "j": sparse(SAFE_ROWS, tf.int64)}
    results = []
    # With device None and a number of shards, TensorFlow's own column makes no table and then fails, so it gets
    # shards=None.
    for api, shards in ((ours, 1), (tf.compat.v1.tpu.experimental, 1 if device else None)):
        layer = tf.keras.layers.DenseFeatures(both(api, device))
        with tpu_context(shards=shards):
            results.append(layer(features).numpy())
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], np.hstack([expected(SAFE_ROWS, "mean")] * 2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", [None, "tpu_embedding_core"])
def test_training_on_a_tpu_takes_what_the_embedding_cores_looked_up(device: str | None) -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    for api in (ours, tf.compat.v1.tpu.experimental):
        with tf.Graph().as_default() as graph, tpu_context(is_inference=False):
            looked_up = {"i": tf.constant([[1.0, 2.0, 3.0]]), "j": tf.constant([[4.0, 5.0, 6.0]])}
            vectors = tf.compat.v1.keras.layers.DenseFeatures(both(api, device))(looked_up)
            with tf.compat.v1.Session() as session:
                assert session.run(vectors).tolist() == [[1, 2, 3, 4, 5, 6]]
            # The collection has the scope and the variable name of each table that the layer would make on a CPU, for
            # the embedding cores.
            (scopes,) = graph.get_collection("_tpu_feature_column_scope")
            assert scopes == {
                "i": ("dense_features/i_embedding", "embedding_weights"),
                "j_shared_embedding": ("", "j_shared_embedding"),
            }


@pytest.mark.parametrize(("device", "is_inference"), [("cpu", False), ("tpu_embedding_core", True)])
@pytest.mark.parametrize("index", [0, 1])
def test_what_a_tpu_can_not_do_is_refused_as_tensorflow_does(device: str, is_inference: bool, index: int) -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    texts = []
    for api in (ours, tf.compat.v1.tpu.experimental):
        layer = tf.keras.layers.DenseFeatures([both(api, device)[index]], name="dense")
        with tpu_context(is_inference=is_inference), pytest.raises(ValueError, match="is not supported") as caught:
            layer({"i": sparse([[1]], tf.int64), "j": sparse([[1]], tf.int64)})
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_a_learning_rate_is_found_by_name() -> None:
    from model_export.columns.device_lookup import learning_rate_from_config

    def rate(step: int) -> float:
        return 1 / step

    assert learning_rate_from_config(rate, None) is rate
    assert learning_rate_from_config("rate", {"rate": rate}) is rate
    assert learning_rate_from_config(None, None) is None
    with pytest.raises(ValueError, match="'rate' is not among custom_objects"):
        learning_rate_from_config("rate", None)
