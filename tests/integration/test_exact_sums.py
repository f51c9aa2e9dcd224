"""Sums and means of a model that export() wrote are TensorFlow's to the bit, on both wires, for each kind of ids."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.foreign.comparing import Tally, compare
from service.artifact.manifest import Manifest
from tests.integration.process import ServerProcess

pytestmark = pytest.mark.tf

NUM_REQUESTS = 60
NUM_ROWS = 60
COMBINERS = ("sum", "mean", "sqrtn")
KINDS = ("ragged", "sparse", "weighted")
SIGNATURES = ("lookup", "serving_default")


@pytest.fixture(scope="module")
def artifact(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports a model with a feature for each combiner and kind of ids; its outputs are the features' vectors."""
    from model_export import TPUEmbedding, export
    from model_export.tensorflow_setup import tf as tensorflow

    embedding, keras = tensorflow.tpu.experimental.embedding, tensorflow.keras
    normal = keras.initializers.RandomNormal(seed=3)
    tables = {c: embedding.TableConfig(NUM_ROWS, 13, name=c, combiner=c, initializer=normal) for c in COMBINERS}
    config, inputs, weights = {}, {}, {}
    for combiner, kind in ((c, k) for c in COMBINERS for k in KINDS):
        name = f"{kind}_{combiner}"
        form = {"ragged": True} if kind == "ragged" else {"sparse": True}
        config[name] = embedding.FeatureConfig(tables[combiner], name=name)
        inputs[name] = keras.Input((None,), dtype="int64", name=name, **form)
        weights[name] = None
        if kind == "weighted":
            weights[name] = inputs[f"{name}_by"] = keras.Input((None,), name=f"{name}_by", **form)
    vectors = TPUEmbedding(config, None)({name: inputs[name] for name in config}, weights=weights)
    outputs = {f"{name}_twice": vectors[name] * 2 for name in config}
    return Path(export(keras.Model(inputs, outputs), tmp_path_factory.mktemp("exact") / "m", signatures=SIGNATURES))


def test_the_manifest_has_the_order_of_each_graph(artifact: Path) -> None:
    manifest = Manifest.read(artifact)
    assert manifest is not None
    orders = {name: f.summation for name, f in manifest.signatures["serving_default"].features.items()}
    expected = {"ragged": "in_order", "sparse": "blocks_of_8", "weighted": "four_lanes"}
    assert orders == {f"{kind}_{combiner}": expected[kind] for kind in KINDS for combiner in COMBINERS}
    # The exporter builds the lookup's graph itself, with ragged ids.
    assert {f.summation for f in manifest.signatures["lookup"].features.values()} == {"in_order"}


def requests(signature: Any) -> Iterator[dict[str, Any]]:
    """Yields random requests: rows of up to 40 ids, weights of any sign; each second one without weights."""
    random = np.random.default_rng(11)
    for number in range(NUM_REQUESTS):
        lengths = random.integers(0, random.choice([4, 12, 41]), random.integers(1, 12))
        request: dict[str, Any] = {}
        for name in (key.removesuffix("__values") for key in signature if key.endswith("__values")):
            count = int(lengths.sum())
            request[f"{name}__values"] = random.integers(0, NUM_ROWS, count)
            request[f"{name}__row_splits"] = np.cumsum([0, *lengths])
            if f"{name}__weights" in signature:
                count = count if number % 2 else 0
                request[f"{name}__weights"] = random.uniform(-0.5, 2, count).astype(np.float32)
        yield request


def test_both_wires_give_tensorflows_bits(artifact: Path) -> None:
    with warnings.catch_warnings():
        # The import of TensorFlow Serving's stock stubs warns of faults in them, which this project can not mend.
        warnings.simplefilter("ignore")
        from loadtest.foreign.wires import GrpcWire, RestWire, from_json
    from loadtest.foreign.reference import Reference

    tally = Tally()
    with (
        ServerProcess(model_base_path=artifact.parent, model_name="m", rest_api_keep_alive_s=600).ready() as server,
        closing(Reference(artifact)) as reference,
        closing(GrpcWire(f"127.0.0.1:{server.grpc_port}")) as over_grpc,
        closing(RestWire(f"http://127.0.0.1:{server.http_port}")) as over_rest,
    ):
        assert set(reference.signatures) == set(SIGNATURES)
        for signature, inputs in reference.signatures.items():
            for request in requests(inputs):
                expected = reference.predict(signature, request)
                compare(tally, expected, lambda s=signature, r=request: over_grpc.predict("m", s, r))
                compare(
                    tally,
                    expected,
                    lambda s=signature, r=request, e=expected: from_json(over_rest.predict("m", s, r), e),
                )
    assert not tally.reasons
    assert tally.equal == tally.asked == 4 * NUM_REQUESTS and not tally.refused
