"""Versions whose tables are reduced afterwards: TensorFlow answers what the server does, predictions stay."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.__main__ import main
from model_export.compaction.compact import compact
from model_export.compaction.deltas import write_delta
from model_export.errors import ExportError
from model_export.export_model import export
from model_export.graphs.reduced_table import widened
from model_export.parity.integrity import integrity_faults
from model_export.report.build import build_report
from model_export.report.rendering import to_text
from service.artifact.bundle import read_bundle
from service.artifact.manifest import Manifest
from service.artifact.stored_tables import rounded
from tests.core_lookups import CoreLookups
from tests.unit.model_export.adoption.test_adopt import (
    FILMS,
    WORDS,
    manifest_of,
    served,
    spec_file,
    tf1_model,
    tf2_model,
)
from tests.unit.model_export.compaction.test_reduced_export import opened, random_tables, requests
from tests.unit.model_export.late import Late

pytestmark = pytest.mark.tf

adopt = Late("model_export.adoption.adopt", "adopt")

# Exports have every dtype (test_reduced_export.py), and further tests here float16, which has no scales either.
DTYPES = ("int8", "int4")
# Fixtures that this module imports from another test file.
__all__ = ["tf1_model", "tf2_model"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 of a model with both lookups, predictions and a {serve,tpu} MetaGraph; tests must not change it."""
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES, TableSource

    source = TableSource(TWO_FEATURES, random_tables(TWO_FEATURES))
    devices: Any = ("cpu", "tpu_tensor_core")
    base = tmp_path_factory.mktemp("trained") / "model"
    return export(source, base, lookup_device=devices, batch_sizes=(4,), export_to_tpu=True)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 of a model with lookups only, two of them with vocabularies; tests must not change it."""
    from tests.unit.model_export.exporter.table_source import EVERY_POLICY, TableSource

    # A feature for each way to read a row: policies change ids before the table is read.
    features = tuple(one for one in EVERY_POLICY.features if one.name in ("plain", "steps", "words", "hashed"))
    spec = replace(EVERY_POLICY, features=features)
    source = TableSource(spec, random_tables(spec))
    return export(source, tmp_path_factory.mktemp("words") / "model")


@pytest.fixture(scope="module")
def reduced(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function that reduces the table of `trained` to a dtype; tests must not change the new version."""
    return cache(lambda dtype: compact(trained, tmp_path_factory.mktemp(dtype), table_dtype=dtype))


@pytest.fixture(scope="module", params=DTYPES)
def reduced_version(request: pytest.FixtureRequest, reduced: Callable[[str], Path]) -> tuple[str, Path]:
    """The name of a dtype, and the version whose tables were reduced to it."""
    return request.param, reduced(request.param)


def read_as(table: np.ndarray, dtype: str) -> np.ndarray:
    """Returns the numbers that are read from a table after it was rounded to a dtype."""
    numbers, scales = rounded(table, dtype)
    return widened(numbers, dtype, scales, embedding_dim=table.shape[1])


def item() -> np.ndarray:
    """Returns the rows of table "item" before it was reduced."""
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES

    return random_tables(TWO_FEATURES)["item"]


def test_the_server_answers_the_bits_of_tensorflows_own_run(
    reduced_version: tuple[str, Path], loaded: Callable[[Path], Any], tf: Any
) -> None:
    dtype, artifact = reduced_version
    core = CoreLookups(artifact)
    lookup = loaded(artifact).signatures["lookup"]
    for request in requests():
        theirs = lookup(**{name: tf.constant(array) for name, array in request.items()})
        ours = core.predict("lookup", request)
        assert ours["a"].tobytes() == theirs["a"].numpy().tobytes() == read_as(item(), dtype)[request["a"]].tobytes()
        np.testing.assert_allclose(ours["b"], theirs["b"].numpy(), rtol=1e-6, atol=1e-6)


def test_predictions_and_their_records_stay(
    reduced_version: tuple[str, Path], trained: Path, loaded: Callable[[Path], Any], tf: Any
) -> None:
    _, artifact = reduced_version
    records = "assets.extra/recorded_predictions"
    assert (artifact / records).read_bytes() == (trained / records).read_bytes()
    assert manifest_of(artifact).parity["serving_default"]["reference"] == "recorded answers"
    ids, splits = tf.constant([4, 5], tf.int64), tf.constant([0, 2], tf.int64)
    request = {"a": tf.constant([3], tf.int64), "b__values": ids, "b__row_splits": splits, "bias": tf.constant([0.5])}
    answers = [
        loaded(folder).signatures["serving_default"](**request)["score"].numpy() for folder in (trained, artifact)
    ]
    assert answers[0].tobytes() == answers[1].tobytes()


def test_every_signature_agrees_on_a_tpu_s_graph_too(reduced: Callable[[str], Path]) -> None:
    from model_export.parity.verify import verify_artifact

    # compact() has verified each version so.
    report = verify_artifact(reduced("int4"))
    assert set(report.signatures) == {"lookup", "lookup_tpu_tensor_core", "serving_default", "examples"}
    # The {serve,tpu} graph, lowered to a CPU, was compared with the numpy oracle.
    assert report.lowered["lookup_tpu_tensor_core"].reference == "oracle"
    assert report.lowered["lookup_tpu_tensor_core"].cases


def test_the_manifest_tells_of_the_new_tables_and_what_they_lost(reduced_version: tuple[str, Path]) -> None:
    dtype, artifact = reduced_version
    manifest = manifest_of(artifact)
    entry, told = manifest.tables["item"], manifest.provenance["reduced_tables"]["item"]
    assert (entry.dtype, entry.vocabulary_size, entry.embedding_dim) == (dtype, 9, 2)
    assert integrity_faults(artifact, manifest) == []
    errors = np.abs(read_as(item(), dtype).astype(np.float64) - item())
    assert told["largest_error"] == errors.max() <= told["error_bound"]
    assert told["mean_error"] == pytest.approx(errors.mean())
    assert told["bytes_before"] == 9 * 2 * 4
    assert told["bytes_after"] == {"int8": 9 * 2 + 9 * 4, "int4": 9 + 9 * 4}[dtype]
    assert told["bytes_after"] == entry.nbytes + (entry.scale.nbytes if entry.scale else 0)
    assert told["queries"] == told["candidates"] == 9 and told["neighbours"] == 8 and told["recall_at_10"] == 1
    assert manifest.provenance["reduced_from"]["predictions"].startswith("not affected")
    text = to_text(build_report(artifact))
    assert "mean cosine between trained and reduced rows" in text and f"(bound of {dtype}:" in text


def test_a_version_of_lookups_alone_has_no_trained_table(words: Path, tmp_path: Path, tf: Any) -> None:
    artifact = compact(words, tmp_path, table_dtype={"word": "int4"})
    keys = set(read_bundle(artifact / "variables" / "variables"))
    variables = {"reduced/word/numbers", "reduced/word/scales", "tables/item/.ATTRIBUTES/VARIABLE_VALUE"}
    assert keys == variables
    assert manifest_of(artifact).provenance["reduced_from"]["predictions"].startswith("none")
    # TensorFlow reads each tensor and compares it with its checksum.
    reader = tf.train.load_checkpoint(str(artifact / "variables" / "variables"))
    assert {name: reader.get_tensor(name).shape for name in sorted(variables)} == {
        "reduced/word/numbers": (12, 2),
        "reduced/word/scales": (12, 1),
        "tables/item/.ATTRIBUTES/VARIABLE_VALUE": (9, 2),
    }
    # "item" is reduced in a version whose table "word" was reduced before.
    both = compact(artifact, table_dtype={"item": "float16", "word": "int4"})
    assert {name: entry.dtype for name, entry in manifest_of(both).tables.items()} == {
        "item": "float16",
        "word": "int4",
    }
    assert set(manifest_of(both).provenance["reduced_tables"]) == {"item", "word"}
    assert set(tf.saved_model.load(str(both)).signatures) == {"lookup"}


def test_versions_that_are_loaded_side_by_side_keep_their_own_rows(
    reduced: Callable[[str], Path], loaded: Callable[[Path], Any], tf: Any
) -> None:
    models = {dtype: loaded(reduced(dtype)) for dtype in ("int8", "int4")}
    request = {name: tf.constant(array) for name, array in next(requests()).items()}
    for dtype, model in models.items():
        rows = model.signatures["lookup"](**request)["a"].numpy()
        assert rows.tobytes() == read_as(item(), dtype)[request["a"].numpy()].tobytes()


def test_deltas_are_folded_before_the_table_is_reduced(trained: Path, tmp_path: Path, tf: Any) -> None:
    import shutil

    version = tmp_path / "model" / "1"
    shutil.copytree(trained, version)
    write_delta(version, "item", np.array([3]), np.array([[0.7, -0.1]]), force=True)
    artifact = compact(version, table_dtype="int4")
    expected = item()
    expected[3] = [0.7, -0.1]
    _, lookups = opened(artifact)
    assert lookups.tables["item"].rows(np.arange(9)).tobytes() == read_as(expected, "int4").tobytes()
    # The trained table, which predictions read, has the row as it was sent; recorded answers of the old row are
    # deleted.
    assert not (artifact / "assets.extra" / "recorded_predictions").exists()
    ids = tf.constant([], tf.int64)
    request = {"a": tf.constant([3], tf.int64), "b__values": ids, "b__row_splits": tf.constant([0, 0], tf.int64)}
    serve = tf.saved_model.load(str(artifact), tags=["serve"]).signatures["serving_default"]
    assert serve(bias=tf.constant([0.0]), **request)["score"].numpy()[0] == pytest.approx(0.6, rel=1e-6)
    # A table that was reduced to int4 accepts deltas.
    write_delta(artifact, "item", np.array([8]), np.array([[7.0, 2.0]]), force=True)
    folded = opened(compact(artifact))[1]
    assert folded.tables["item"].rows(np.array([8])).tolist() == [[7.0, 2.0]]


def test_lookups_that_adopt_added_are_reduced_and_the_models_own_are_not(tf1_model: Path, tmp_path: Path) -> None:
    from model_export.graphs.signature_runner import open_signatures

    text = """
        [tables.film]
        [tables.word]
        [features.ids]
        table = "film"
        [features.words]
        table = "word"
        is_ragged = true
        [signatures.serving_default]
        outputs = { ids = "vectors" }
        [lookup]
        device = "cpu"
    """
    adopted = adopt(tf1_model, spec_file(tmp_path, text), tmp_path / "out")
    with pytest.raises(ExportError, match=r"'serving_default' is the model's own lookup.*\['film'\].*adopt"):
        compact(adopted, table_dtype="int8")
    assert [path.name for path in adopted.parent.iterdir()] == ["1"]
    artifact = compact(adopted, table_dtype={"word": "int4"})
    numbers, scales = rounded(WORDS, "int4")
    expected = widened(numbers, "int4", scales, embedding_dim=3)
    request = {"ids": [4, 9], "words__values": [1, 3, 2], "words__row_splits": [0, 1, 3]}
    ours = served(artifact, "lookup", request)
    assert ours["ids"] == FILMS[[4, 9]].tolist()
    means = [expected[1], (expected[3] + expected[2]) / np.float32(2)]
    np.testing.assert_allclose(ours["words"], means, rtol=1e-6)
    with open_signatures(artifact) as runner:
        arrays = {name: np.array(value) for name, value in request.items()}
        theirs = runner.run("lookup", {**arrays, "words__weights": np.zeros(0, np.float32)})
        assert runner.run("serving_default", {"ids": np.array([5])})["vectors"].tolist() == [FILMS[5].tolist()]
    assert {name: vectors.tolist() for name, vectors in theirs.items()} == ours


def test_a_partitioned_table_that_adopt_put_beside_goes_with_its_reduction(tf1_model: Path, tmp_path: Path) -> None:
    text = '[tables.film]\n[features.item]\ntable = "film"\n[lookup]\ndevice = "cpu"\n'
    adopted = adopt(tf1_model, spec_file(tmp_path, text), tmp_path / "out")
    artifact = compact(adopted, table_dtype="float16")
    assert list((adopted / "assets.extra").glob("table_film*")) and not list(
        (artifact / "assets.extra").glob("table_film*")
    )
    assert served(artifact, "lookup", {"item": [9, 4]}) == {"item": FILMS[[9, 4]].tolist()}


def test_adopted_tensorflow_2_models_are_reduced(tf2_model: Path, tmp_path: Path, tf: Any) -> None:
    text = '[tables.film]\n[features.item]\ntable = "film"\n[lookup]\ndevice = "cpu"\n'
    adopted = adopt(tf2_model, spec_file(tmp_path, text), tmp_path / "out")
    artifact = compact(adopted, table_dtype="int4")
    loaded = tf.saved_model.load(str(artifact)).signatures
    numbers, scales = rounded(FILMS, "int4")
    expected = widened(numbers, "int4", scales, embedding_dim=2)
    ids = tf.constant([9, 3], tf.int64)
    assert loaded["lookup"](item=ids)["item"].numpy().tolist() == expected[[9, 3]].tolist()
    assert loaded["serving_default"](film=ids)["film"].numpy().tolist() == FILMS[[9, 3]].tolist()


FAULTS: dict[str, tuple[Any, str]] = {
    "no such table": ({"items": "int8"}, r"names \['items'\]; the tables are \['item'\]"),
    "no such dtype": ("int2", "expected one of float32, float16, bfloat16, int8, int4"),
    "nothing changes": ("float32", "changes no table"),
}


@pytest.mark.parametrize(("table_dtype", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_what_can_not_be_reduced_is_refused(trained: Path, tmp_path: Path, table_dtype: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        compact(trained, tmp_path / "out", table_dtype=table_dtype)
    assert not (tmp_path / "out").exists()


def test_a_reduced_table_is_not_reduced_again(reduced_version: tuple[str, Path], tmp_path: Path) -> None:
    dtype, artifact = reduced_version
    with pytest.raises(ExportError, match="changes no table"):
        compact(artifact, tmp_path, table_dtype=dtype)
    other = "int8" if dtype != "int8" else "int4"
    with pytest.raises(ExportError, match=f"'item' is {dtype} already; reduce a version that has it as float32"):
        compact(artifact, tmp_path, table_dtype=other)


def test_a_row_without_a_place_in_the_dtype_is_named(trained: Path, tmp_path: Path) -> None:
    import shutil

    version = tmp_path / "model" / "1"
    shutil.copytree(trained, version)
    write_delta(version, "item", np.array([7]), np.array([[70000, 0]]), force=True)
    with pytest.raises(ExportError, match="row 7 holds 70000, float16 ends at 65504"):
        compact(version, table_dtype="float16")
    assert [path.name for path in version.parent.iterdir()] == ["1"]


def test_the_command_prints_the_report(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact", str(trained), "--out", str(tmp_path), "--table_dtype=item=int4"]) == 0
    out = capsys.readouterr().out
    assert "reduced from version 1" in out and "item  int4, 72 bytes before, 45 after (62.5%)" in out
    assert "recall@8: 1.0000 of the nearest neighbours (cosine, exact) of all rows, looked for among 9 of 9" in out
    assert "predictions: not affected: they read the trained tables" in out


def test_folding_alone_needs_no_tensorflow(trained: Path, tmp_path: Path) -> None:
    import shutil

    version = tmp_path / "model" / "1"
    shutil.copytree(trained, version)
    write_delta(version, "item", np.array([3]), np.array([[0.7, -0.1]]), force=True)
    script = (
        f"import sys; from model_export import compact; compact({str(version)!r}); print('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert done.stdout.strip() == "False"
    assert Manifest.read(version.parent / "2") is not None
