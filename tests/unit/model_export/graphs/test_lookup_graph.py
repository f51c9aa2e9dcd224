"""Looks rows up in a TensorFlow 1 graph, in whole and partitioned variables; test_api.py has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.graphs.source import lookup_entry
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from service.artifact.manifest import LookupDevice

pytestmark = pytest.mark.tf

TABLE = np.arange(14, dtype=np.float32).reshape(7, 2)
SPEC = ModelSpec(
    (TableSpec("t", 7, 2),),
    (
        FeatureSpec("bag", "t", is_ragged=True, max_ids_per_row=3, on_bad_id="drop"),
        FeatureSpec("word", "t", vocabulary=VocabularySpec(("x", "y"), 1, num_oov_buckets=2)),
        FeatureSpec("steps", "t", is_ragged=True, max_sequence_length=2),
    ),
)
INPUTS = {
    "bag__values": [1, -1, 3, 6],
    "bag__row_splits": [0, 3, 4],
    "word": ["y", "x"],
    "steps__values": [5, 4, 3],
    "steps__row_splits": [0, 3, 3],
}
# Sums of table rows: bag 1 + 3, and 6; word 2, and 1. steps is a sequence: rows 5 and 4, and an empty one.
EXPECTED = {
    "bag": [[4, 5], [12, 13]],
    "word": [[4, 5], [2, 3]],
    "steps": [[[10, 11], [8, 9]], [[0, 0], [0, 0]]],
}


def placed(tf: Any, parts: int) -> Any:
    """Returns the table as one variable, or as several that are its parts."""
    get_variable = tf.compat.v1.get_variable
    if parts == 1:
        return get_variable("t", initializer=TABLE)
    return [get_variable(f"part_{i}", initializer=rows) for i, rows in enumerate(np.array_split(TABLE, parts))]


@pytest.mark.parametrize("device", ["cpu", "tpu_tensor_core"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("is_resource", [True, False])
def test_a_lookup_in_a_v1_graph(tmp_path: Path, device: LookupDevice, parts: int, is_resource: bool) -> None:
    from model_export.graphs.lookup_graph import build_lookup, vocabulary_tables
    from model_export.tensorflow_setup import tf

    file = tmp_path / "word.txt"
    file.write_text("x\ny\n")
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session, v1.variable_scope("", use_resource=is_resource):
        entry = lookup_entry(SPEC, device, batch_sizes=(4,))
        vocabularies = vocabulary_tables(SPEC, {"word": file})
        definition = build_lookup(entry, SPEC, {"t": placed(tf, parts)}, vocabularies).signature_def("s")
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        (asset,) = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS)
        assert session.run(asset) == str(file).encode()
        feeds = {definition.inputs[name].name: value for name, value in INPUTS.items()}
        feeds[definition.inputs["bag__weights"].name] = tf.make_ndarray(definition.defaults["bag__weights"])
        got = session.run({name: info.name for name, info in definition.outputs.items()}, feeds)
    assert definition.inputs["bag__values"].name == "s_bag__values:0"
    assert list(definition.defaults) == ["bag__weights"]
    assert {name: vectors.tolist() for name, vectors in got.items()} == EXPECTED
    assert definition.inputs["bag__values"].dtype == (tf.int32 if device == "tpu_tensor_core" else tf.int64)


@pytest.mark.parametrize("device", ["cpu", "tpu_tensor_core"])
def test_an_id_that_its_weight_leaves_out_is_not_checked(device: LookupDevice) -> None:
    from model_export.graphs.lookup_graph import build_lookup
    from model_export.tensorflow_setup import tf

    bag = FeatureSpec("bag", "t", is_ragged=True, max_ids_per_row=3, on_bad_id="error", on_nonpositive_weight="drop")
    spec = ModelSpec(SPEC.tables, (bag,))
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        entry = lookup_entry(spec, device, batch_sizes=(4,))
        assert entry.features["bag"].on_nonpositive_weight == "drop"
        definition = build_lookup(entry, spec, {"t": placed(tf, 1)}).signature_def("s")
        session.run(v1.global_variables_initializer())

        def looked_up(*weights: float) -> Any:
            values = {"bag__values": [1, 99, -5, 3], "bag__row_splits": [0, 2, 4], "bag__weights": list(weights)}
            feeds = {definition.inputs[name].name: value for name, value in values.items()}
            return session.run(definition.outputs["bag"].name, feeds).tolist()

        assert looked_up(2, 0, -1, 1) == [[2, 3], [6, 7]]
        for place in (1, 2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="an id is"):
                looked_up(*(1 if place == at or at in (0, 3) else 0 for at in range(4)))


def test_keys_need_a_vocabulary_table() -> None:
    from model_export.graphs.lookup_graph import build_lookup

    with pytest.raises(ValueError, match=r"features \['word'\] take keys"):
        build_lookup(lookup_entry(SPEC, "cpu"), SPEC, {"t": TABLE})


@pytest.mark.parametrize("device", ["cpu", "tpu_tensor_core"])
def test_a_mean_may_divide_either_way_on_either_device(device: LookupDevice) -> None:
    from dataclasses import replace

    from model_export.graphs.lookup_graph import build_lookup

    spec = ModelSpec((TableSpec("t", 7, 2),), (FeatureSpec("bag", "t", is_ragged=True, max_ids_per_row=3),))
    entry = lookup_entry(spec, device, batch_sizes=(4,))
    inputs = {"bag__values": [1, 3], "bag__row_splits": [0, 2], "bag__weights": [0.25, 0.25]}
    for divisor, expected in (("sum_weights", [[4, 5]]), ("at_least_one", [[2, 2.5]])):
        changed = replace(entry, features={"bag": replace(entry.features["bag"], mean_divisor=divisor)})
        lookup = build_lookup(changed, spec, {"t": TABLE})
        specs = lookup.input_specs()
        tensors = {name: _constant(value, specs[name]) for name, value in inputs.items()}
        assert lookup.outputs(tensors)["bag"].numpy().tolist() == expected


@pytest.mark.parametrize("policy", ["error", "truncate"])
def test_the_cpu_lookup_keeps_to_a_limit_that_a_manifest_sets(policy: str) -> None:
    from dataclasses import replace

    from model_export.graphs.lookup_graph import build_lookup
    from model_export.tensorflow_setup import tf

    spec = ModelSpec((TableSpec("t", 7, 2, "sum"),), (FeatureSpec("bag", "t", is_ragged=True),))
    entry = lookup_entry(spec, "cpu")
    limited = replace(entry.features["bag"], max_ids_per_row=2, on_too_many_ids=policy)
    lookup = build_lookup(replace(entry, features={"bag": limited}), spec, {"t": TABLE})
    inputs = {"bag__values": [1, 3, 99], "bag__row_splits": [0, 3], "bag__weights": []}
    tensors = {name: _constant(value, lookup.input_specs()[name]) for name, value in inputs.items()}
    if policy == "truncate":
        assert lookup.outputs(tensors)["bag"].numpy().tolist() == [[8, 10]]
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="a row has more than 2 ids"):
        lookup.outputs(tensors)


def _constant(value: Any, spec: Any) -> Any:
    from model_export.tensorflow_setup import tf

    return tf.constant(value, spec.dtype)
