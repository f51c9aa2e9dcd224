"""Exports of an estimator: signatures, fields of examples, and versions named by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.foreign.frameworks import tf
from model_export.errors import ExportError
from model_export.export_model import export
from model_export.graphs.source import LookupPlan, PredictSignature, lookup_entry
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import StochasticGradientDescentParameters
from service.artifact.manifest import MANIFEST_PATH
from tests.toy_model import manifest_of
from tests.unit.model_export.estimator.small_model import (
    ROWS,
    TABLE_NAME,
    column,
    estimator_of,
    input_fn,
    model_fn_of,
    vectors_of,
)
from tests.unit.model_export.late import late

with late():
    from model_export.estimator.estimator import EmbeddingEstimator
    from model_export.estimator.estimator_spec import (
        ClassificationOutput,
        EstimatorSpec,
        ModeKeys,
        PredictOutput,
        RegressionOutput,
    )
    from model_export.estimator.export_source import EstimatorSource, ExampleFields, example_fields, export_timestamped
    from model_export.estimator.receivers import build_parsing_serving_input_receiver_fn
    from model_export.graphs.signature_runner import read_saved_model

pytestmark = pytest.mark.tf

TENSOR_CORE: dict[str, Any] = {"embedding_lookup_device": "tpu_tensor_core", "tensor_core_shape": [None, 2]}


def parsing() -> Any:
    """Returns the serving inputs of examples with the small model's feature and one that it does not read."""
    fields = {"c": tf.io.VarLenFeature(tf.int64), "age": tf.io.FixedLenFeature([2], tf.float32, [0.0, 0.0])}
    return build_parsing_serving_input_receiver_fn(fields)()


def spec_of(**arguments: Any) -> EmbeddingConfigSpec:
    """Returns a spec with a column for tensor cores, which cuts rows to two ids."""
    return EmbeddingConfigSpec([column(**TENSOR_CORE)], StochasticGradientDescentParameters(0.5), **arguments)


def examples() -> list[bytes]:
    def example(row: list[int]) -> Any:
        field = tf.train.Feature(int64_list=tf.train.Int64List(value=row))
        return tf.train.Example(features=tf.train.Features(feature={"c": field}))

    return [example(row).SerializeToString() for row in ROWS]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingEstimator:
    return estimator_of(tmp_path_factory.mktemp("trained"), spec_of()).train(input_fn, steps=2)


@pytest.fixture(scope="module")
def source(trained: EmbeddingEstimator) -> EstimatorSource:
    """Returns the source of the estimator's newest checkpoint, which takes tf.Examples."""
    return EstimatorSource(trained, parsing)


def tags_of(folder: Path) -> list[list[str]]:
    return [sorted(graph.meta_info_def.tags) for graph in read_saved_model(folder).meta_graphs]


def test_both_meta_graphs_over_one_set_of_variables(
    tmp_path: Path, trained: EmbeddingEstimator, source: EstimatorSource
) -> None:
    plan = LookupPlan({"lookup": lookup_entry(source.spec, "cpu")}, {}, export_to_tpu=True)
    parts = source.save(tmp_path / "saved", plan, source.predict_names)
    assert tags_of(tmp_path / "saved") == [["serve"], ["serve", "tpu"]]
    assert parts.table_variables == {"c": TABLE_NAME}
    assert parts.predict == {"serving_default": PredictSignature((), "examples", {"age": 2})}

    table, weight = (trained.get_variable_value(name) for name in (TABLE_NAME, "weight"))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path / "saved"))
        head, lookup = (loaded.signature_def[name] for name in ("serving_default", "lookup"))
        got = session.run(head.outputs["answer"].name, {head.inputs["examples"].name: examples()})
        # The graph for {serve} computes the lookup of a CPU, which reads all three ids of row 2.
        np.testing.assert_allclose(got, vectors_of(table) @ weight, rtol=1e-5, atol=1e-6)
        feed = {
            lookup.inputs["c__values"].name: np.concatenate(ROWS).astype(np.int64),
            lookup.inputs["c__row_splits"].name: [0, 2, 3, 6, 6],
            lookup.inputs["c__weights"].name: np.zeros(0, np.float32),
        }
        vectors = session.run(lookup.outputs["c"].name, feed)
        np.testing.assert_allclose(vectors, vectors_of(table), rtol=1e-5, atol=1e-6)
    tpu = next(graph for graph in read_saved_model(tmp_path / "saved").meta_graphs if "tpu" in graph.meta_info_def.tags)
    assert set(tpu.signature_def) == {"serving_default"}
    assert "TPUPartitionedCall" in {node.op for node in tpu.graph_def.node}


def test_the_model_in_memory_answers_and_tells_of_itself(trained: EmbeddingEstimator, source: EstimatorSource) -> None:
    table, weight = (trained.get_variable_value(name) for name in (TABLE_NAME, "weight"))
    got = source.predict("serving_default", {"examples": np.array(examples(), object)})
    np.testing.assert_allclose(got["answer"], vectors_of(table) @ weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(source.table_rows("c", 1, 4), table[1:4])
    assert source.provenance["step"] == 2
    assert [point["step"] for point in source.provenance["history"]] == [1, 2]


def test_tpu_only_has_its_variables_also_of_columns_without_a_device(
    tmp_path: Path, trained: EmbeddingEstimator
) -> None:
    EstimatorSource(estimator_of(trained.model_dir), parsing).save_tpu_only(tmp_path / "saved")
    assert tags_of(tmp_path / "saved") == [["serve", "tpu"]]
    saved = dict(tf.train.list_variables(str(tmp_path / "saved" / "variables" / "variables")))
    assert saved[TABLE_NAME] == [5, 2]


def test_in_version_2_model_fn_places_itself(tmp_path: Path, trained: EmbeddingEstimator) -> None:
    seen: list[dict[str, Any]] = []
    inner = model_fn_of(trained.model.embedding.feature_columns)

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
        seen.append(params)
        if not params["use_tpu"]:
            return inner(features, labels, mode, params)
        return EstimatorSpec(mode, {"answer": tf.ones([tf.shape(features["age"])[0], 1])})

    estimator = estimator_of(
        trained.model_dir, trained.model.embedding, model_fn=model_fn, export_saved_model_api_version=2
    )
    source = EstimatorSource(estimator, parsing)
    source.save(tmp_path / "saved", LookupPlan({}, {}, export_to_tpu=True), source.predict_names)
    assert [params for params in seen if params["use_tpu"]] == [{"use_tpu": True}]
    tpu = next(graph for graph in read_saved_model(tmp_path / "saved").meta_graphs if "tpu" in graph.meta_info_def.tags)
    assert "TPUPartitionedCall" not in {node.op for node in tpu.graph_def.node}


def test_heads_are_signatures_of_their_methods(tmp_path: Path, trained: EmbeddingEstimator) -> None:
    inner = model_fn_of(trained.model.embedding.feature_columns)

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
        spec = inner(features, labels, mode, params)
        answer = spec.predictions["answer"]
        heads = {
            "serving_default": PredictOutput({"answer": answer}),
            "class": ClassificationOutput(scores=tf.concat([answer, -answer], 1)),
            "number": RegressionOutput(answer),
        }
        replaced: EstimatorSpec = spec._replace(export_outputs=heads)
        return replaced

    source = EstimatorSource(estimator_of(trained.model_dir, trained.model.embedding, model_fn=model_fn), parsing)
    assert source.predict_names == ("class", "number", "serving_default")
    source.save(tmp_path / "saved", LookupPlan({}, {}, export_to_tpu=True), source.predict_names)
    for graph in read_saved_model(tmp_path / "saved").meta_graphs:
        methods = {name: definition.method_name for name, definition in graph.signature_def.items()}
        assert methods == {
            "serving_default": "tensorflow/serving/predict",
            "class": "tensorflow/serving/classify",
            "number": "tensorflow/serving/regress",
        }
        assert set(graph.signature_def["number"].inputs) == {"inputs"}


def test_mod_and_a_missing_checkpoint_are_refused(tmp_path: Path, trained: EmbeddingEstimator) -> None:
    mod = estimator_of(trained.model_dir, spec_of(partition_strategy="mod"))
    with pytest.raises(ExportError, match='partition_strategy is "mod"'):
        EstimatorSource(mod, parsing)
    with pytest.raises(ValueError, match="Couldn't find trained model at"):
        EstimatorSource(estimator_of(tmp_path), parsing)
    with pytest.raises(ValueError, match="serving_input_receiver_fn must be a function"):
        EstimatorSource(trained, None)
    warm = estimator_of(tmp_path, spec_of(), warm_start_from=trained.model_dir)
    assert EstimatorSource(warm, parsing).provenance["step"] == 2


def test_a_variable_that_training_does_not_save_is_named(tmp_path: Path, trained: EmbeddingEstimator) -> None:
    inner = model_fn_of(trained.model.embedding.feature_columns)

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
        if mode == ModeKeys.PREDICT:
            tf.compat.v1.get_variable("new", [1])
        return inner(features, labels, mode, params)

    other = estimator_of(trained.model_dir, trained.model.embedding, model_fn=model_fn)
    with pytest.raises(ValueError, match="Could not load all requested variables from checkpoint"):
        EstimatorSource(other, parsing)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_lookups_read_tables_of_fewer_bits_and_heads_the_checkpoints(
    tmp_path: Path, source: EstimatorSource, dtype: str
) -> None:
    artifact = export(source, tmp_path, table_dtype=dtype)
    manifest = manifest_of(artifact)
    assert {table.dtype for table in manifest.tables.values()} == {dtype}
    assert {name for name, parity in manifest.parity.items() if parity["cases"]} == set(manifest.signatures)


def test_fields_by_kind() -> None:
    with tf.Graph().as_default():
        examples = tf.compat.v1.placeholder(tf.string, [None])
        assert example_fields(examples) is None
        spec = {
            "ids": tf.io.VarLenFeature(tf.int64),
            "ages": tf.io.FixedLenFeature([2], tf.float32),
            "one": tf.io.FixedLenFeature([], tf.int64),
        }
        tf.io.parse_example(examples, spec)
        assert example_fields(examples) == ExampleFields(
            ("ids", "ages", "one"), {"ages": ("float32", 2), "one": ("int64", 1)}
        )


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("trained")
    return estimator_of(folder, spec_of()).train(input_fn, steps=2).model_dir


def test_a_version_is_the_time_or_one_more_and_holds_lookups_heads_and_extra_files(
    tmp_path: Path, model_dir: str
) -> None:
    extra = tmp_path / "note.txt"
    extra.write_text("hello")
    given: dict[str, Any] = {"as_text": False, "mode": ModeKeys.PREDICT, "clock": lambda: 1234.9}
    base = tmp_path / "base"
    (base / "1234").mkdir(parents=True)
    version = export_timestamped(
        estimator_of(model_dir, spec_of()),
        base,
        parsing,
        assets_extra={"notes/one.txt": extra},
        checkpoint_path=str(Path(model_dir) / "model.ckpt-0"),
        **given,
    )
    assert version == str(base / "1235")
    assert sorted(path.name for path in base.iterdir()) == ["1234", "1235"]
    assert (base / "1235" / "assets.extra" / "notes" / "one.txt").read_text() == "hello"
    assert tags_of(base / "1235") == [["serve"], ["serve", "tpu"]]
    manifest = manifest_of(base / "1235")
    assert set(manifest.signatures) == {"lookup", "lookup_tpu_tensor_core", "serving_default"}
    assert manifest.provenance["step"] == 0
    assert "assets.extra/notes/one.txt" in manifest.files


def test_without_a_spec_and_without_a_tpu_there_are_the_heads_only(tmp_path: Path, model_dir: str) -> None:
    estimator = EmbeddingEstimator(
        model_fn_of([column()]),
        model_dir,
        estimator_of(model_dir).config,
        train_batch_size=4,
        export_to_tpu=False,
    )
    version = Path(estimator.export_saved_model(tmp_path, parsing))
    assert tags_of(version) == [["serve"]]
    manifest = manifest_of(version)
    assert set(manifest.signatures) == {"serving_default"}


def test_export_to_cpu_false_writes_the_tpu_graph_alone_and_no_manifest(tmp_path: Path, model_dir: str) -> None:
    extra = tmp_path / "note.txt"
    extra.write_text("hello")
    estimator = estimator_of(model_dir, spec_of(), export_to_cpu=False)
    version = Path(estimator.export_saved_model(tmp_path / "base", parsing, assets_extra={"note.txt": extra}))
    assert tags_of(version) == [["serve", "tpu"]]
    assert not (version / MANIFEST_PATH).exists()
    assert (version / "assets.extra" / "note.txt").read_text() == "hello"
    assert [path.name for path in (tmp_path / "base").iterdir()] == [version.name]


def test_what_is_refused_leaves_nothing(tmp_path: Path, model_dir: str) -> None:
    estimator = estimator_of(model_dir, spec_of())
    base = tmp_path / "base"
    with pytest.raises(ValueError, match="An input_receiver_fn must be defined."):
        estimator.export_saved_model(base, None)
    with pytest.raises(ExportError, match="as_text=True"):
        estimator.export_saved_model(base, parsing, as_text=True)
    with pytest.raises(ExportError, match="experimental_mode is 'eval'"):
        estimator.export_saved_model(base, parsing, experimental_mode=ModeKeys.EVAL)
    with pytest.raises(ValueError, match="assets_extra: '../x' lies outside"):
        estimator.export_saved_model(base, parsing, assets_extra={"../x": tmp_path})
    with pytest.raises(ValueError, match="which is no file"):
        estimator.export_saved_model(base, parsing, assets_extra={"x": tmp_path})
    neither = estimator_of(model_dir, spec_of(), export_to_cpu=False, export_to_tpu=False)
    with pytest.raises(ValueError, match="One of export_to_cpu and export_to_tpu must be true."):
        neither.export_saved_model(base, parsing)
    assert not base.exists()
