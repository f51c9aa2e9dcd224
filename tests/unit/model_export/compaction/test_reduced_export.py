"""Exports have tables of fewer bits: the stock SavedModel answers from them, and the server answers the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.cli import build_parser
from model_export.errors import ExportError
from model_export.export_model import export
from model_export.parity.integrity import integrity_faults
from model_export.report.table_files import declared_tables, map_table
from service.artifact.manifest import MANIFEST_PATH, Manifest
from service.artifact.signature_def import read_signatures
from service.tables.backend import open_lookups
from tests.core_lookups import CoreLookups
from tests.toy_model import manifest_of

pytestmark = pytest.mark.tf

DTYPES = ("float16", "bfloat16", "int8", "int4")


def random_tables(spec: Any) -> dict[str, np.ndarray]:
    """Returns random tables whose numbers no dtype of fewer bits holds exactly."""
    random = np.random.default_rng(3)
    return {t.name: random.normal(size=(t.vocabulary_size, t.embedding_dim)).astype(np.float32) for t in spec.tables}


@pytest.fixture(scope="module", params=DTYPES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Exports an artifact with lookups and predictions; yields the dtype of its table, and the folder."""
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES, TableSource

    source = TableSource(TWO_FEATURES, random_tables(TWO_FEATURES))
    base = tmp_path_factory.mktemp(request.param)
    devices: Any = ("cpu", "tpu_tensor_core")
    yield request.param, export(source, base, lookup_device=devices, batch_sizes=(4,), table_dtype=request.param)


def opened(artifact: Path) -> tuple[Manifest, Any]:
    """Opens an artifact as the server does; returns its manifest and its lookups."""
    manifest = manifest_of(artifact)
    return manifest, open_lookups(artifact, manifest, read_signatures(artifact / "saved_model.pb"))


def requests() -> Iterator[dict[str, np.ndarray]]:
    """Yields the inputs of random lookups, without and with weights."""
    random = np.random.default_rng(5)
    for is_weighted in (False, True, False, True):
        lengths = random.integers(0, 4, 4)
        splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # Empty weights mean no weights: a request that leaves them out is read like this.
        request = {
            "b__weights": np.empty(0, np.float32),
            "a": random.integers(0, 9, 4),
            "b__values": random.integers(0, 9, splits[-1]),
            "b__row_splits": splits,
        }
        if is_weighted:
            request["b__weights"] = random.normal(size=splits[-1]).astype(np.float32)
        yield request


def test_the_server_answers_the_bits_of_tensorflows_own_run(
    exported: tuple[str, Path], loaded: Callable[[Path], Any], tf: Any
) -> None:
    _, artifact = exported
    core = CoreLookups(artifact)
    lookup = loaded(artifact).signatures["lookup"]
    for request in requests():
        theirs = lookup(**{name: tf.constant(array) for name, array in request.items()})
        ours = core.predict("lookup", request)
        assert ours["a"].tobytes() == theirs["a"].numpy().tobytes()
        # TensorFlow computes a mean from the same sum, but adds the weights in another order.
        np.testing.assert_allclose(ours["b"], theirs["b"].numpy(), rtol=1e-6, atol=1e-6)


def test_what_is_stored_is_the_table_rounded(exported: tuple[str, Path]) -> None:
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES

    dtype, artifact = exported
    manifest, lookups = opened(artifact)
    entry, trained = manifest.tables["item"], random_tables(TWO_FEATURES)["item"]
    assert (entry.dtype, entry.nbytes) == (dtype, trained.size * {"int8": 1, "int4": 0.5}.get(dtype, 2))
    told = manifest.provenance["reduced_tables"]["item"]
    served = lookups.tables["item"].rows(np.arange(9))
    assert np.abs(served.astype(np.float64) - trained).max() == told["largest_error"] <= told["error_bound"]
    assert 0 < told["largest_error"]
    # The report reads the same numbers of a reduced table as the server.
    (table,) = declared_tables(manifest)
    np.testing.assert_array_equal(map_table(artifact, table)[0:9], served)


def test_predictions_read_the_trained_table(exported: tuple[str, Path], loaded: Callable[[Path], Any], tf: Any) -> None:
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES

    _, artifact = exported
    table = random_tables(TWO_FEATURES)["item"].astype(np.float64)
    serve = loaded(artifact).signatures["serving_default"]
    splits = tf.constant([0, 2], tf.int64)
    bag = tf.constant([4, 5], tf.int64)
    score = serve(a=tf.constant([3], tf.int64), b__values=bag, b__row_splits=splits, bias=tf.constant([0.5]))["score"]
    assert score.numpy()[0] == pytest.approx(table[[3, 4, 5]].sum() + 0.5, rel=1e-6)


def test_an_artifact_whose_scales_are_not_as_told_is_found_out(exported: tuple[str, Path]) -> None:
    dtype, artifact = exported
    manifest = manifest_of(artifact)
    assert integrity_faults(artifact, manifest) == []
    data = json.loads((artifact / MANIFEST_PATH).read_text())
    data["provenance"]["reduced_tables"]["item"]["largest_error"] = 1.0
    faults = integrity_faults(artifact, Manifest.from_json(json.dumps(data)))
    assert len(faults) == 1 and "differs from the trained one by 1" in faults[0]
    if dtype in ("int8", "int4"):
        data["tables"]["item"]["scale"]["variable"] = "scales/none"
        faults = integrity_faults(artifact, Manifest.from_json(json.dumps(data)))
        assert any("no float32 scale per row under 'scales/none'" in fault for fault in faults)


def test_a_source_that_saves_another_dtype_is_refused(tmp_path: Path) -> None:
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES, TableSource

    class Deaf(TableSource):
        def save(self, folder: Path, plan: Any, predict: Any) -> Any:
            from dataclasses import replace

            return super().save(folder, replace(plan, reduced={}), predict)

    with pytest.raises(ExportError, match="table 'item' was saved as float32, expected float16"):
        export(Deaf(TWO_FEATURES), tmp_path, table_dtype="float16")
    assert list(tmp_path.iterdir()) == []


def test_the_flag_names_one_for_all_or_by_table(capsys: pytest.CaptureFixture[str]) -> None:
    def parsed(text: str) -> Any:
        return build_parser().parse_args(["export", f"--table_dtype={text}"]).table_dtype

    assert parsed("bfloat16") == "bfloat16"
    assert parsed("item=int8,user=float16") == {"item": "int8", "user": "float16"}
    for wrong, said in (("item=int8,user", "'user' is not NAME=VALUE"), ("item=float8", "'float8' is none of float32")):
        with pytest.raises(SystemExit):
            parsed(wrong)
        assert said in capsys.readouterr().err
