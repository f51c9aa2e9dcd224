"""Warm-up runs each signature with a graph once, on a row that fits its inputs; a refusal does not fail it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.artifact.manifest import Manifest
from service.artifact.signature_def import read_signatures
from service.errors import InvalidRequest
from service.loading.loader import ServableLoader
from service.loading.warmup import warm_up
from service.native.choice import has_core
from service.native.native_servable import CompiledServable, compile_native
from service.reference.inputs import checked
from service.tables.backend import open_lookups
from service.types import Array, SignatureSpec, Tensors, TensorSpec, ragged_features
from service.wire.predict_proto import decode_request, decode_response
from tests.toy_policies import write_policy_model
from tests.unit.engine.fakes import FakeNative, servable


def warmed(**signatures: SignatureSpec) -> dict[str, Tensors]:
    """Warms up signatures; returns the inputs with which each was run."""
    native = FakeNative()
    warm_up(servable(native=native, signatures=signatures), signatures)
    return {name: inputs for name, inputs, _ in native.runs}


def signature(name: str, **inputs: TensorSpec) -> SignatureSpec:
    return SignatureSpec(name, "predict", "", inputs, {}, ragged_features(inputs))


RANK = signature(
    "rank",
    user=TensorSpec("user", "int64", (None,), vocabulary_size=3),
    age=TensorSpec("age", "float32", (None, 2)),
    tags__values=TensorSpec("tags__values", "int64", (None,), vocabulary_size=3),
    tags__row_splits=TensorSpec("tags__row_splits", "int64", (None,)),
    unused=TensorSpec("unused", "float32", (None,), is_optional=True),
)
PARSE = signature("parse", examples=TensorSpec("examples", "string", (None,)))


def test_each_signature_runs_once_on_a_valid_row() -> None:
    runs = warmed(rank=RANK, parse=PARSE)
    checked(RANK, runs["rank"], strict_shapes=True)
    assert set(runs["rank"]) == {"user", "age", "tags__values", "tags__row_splits"}
    assert runs["rank"]["age"].shape == (1, 2)
    np.testing.assert_array_equal(runs["parse"]["examples"], np.array([b""], object))


def test_keys_are_of_the_vocabulary(tmp_path: Path) -> None:
    artifact = write_policy_model(tmp_path / "1")
    manifest = Manifest.read(artifact)
    assert manifest is not None
    signature = open_lookups(artifact, manifest, read_signatures(artifact / "saved_model.pb")).signatures[
        "serving_default"
    ]
    runs = warmed(rank=signature)
    checked(signature, runs["rank"], strict_shapes=True)
    assert {name: array.tolist() for name, array in runs["rank"].items() if "row_splits" not in name} == {
        "drop_negative__values": [0],
        "words__values": [b"red"],
        "codes__values": [100],
        "code": [100],
    }


def test_a_signature_that_refuses_the_row_is_left_cold(caplog: pytest.LogCaptureFixture) -> None:
    def refuse_users(inputs: Tensors) -> dict[str, Array]:
        if "user" in inputs:
            raise InvalidRequest("no")
        return {}

    native = FakeNative(refuse_users)
    caplog.set_level("INFO")
    warm_up(servable(native=native, signatures={"rank": RANK, "parse": PARSE}), ["rank", "parse"])
    assert [name for name, _, _ in native.runs] == ["rank", "parse"]
    assert caplog.messages == ["signature is not warmed up"]


@pytest.mark.tf
@pytest.mark.skipif(not has_core(), reason="the native core is not built")
def test_the_core_runs_the_graphs_that_it_serves(tower_version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered: dict[str, object] = {}
    answer = CompiledServable.answer

    def noted(self: CompiledServable, request: bytes) -> bytes:
        name = decode_request(request).signature_name
        if "/" in name:
            # The load looks up a feature, to compare it with the graph.
            return answer(self, request)
        answered[name] = "refused"
        response = answer(self, request)
        answered[name] = {output: array.shape[0] for output, array in decode_response(response).items()}
        return response

    monkeypatch.setattr(CompiledServable, "answer", noted)
    loader = ServableLoader(frozenset({"serve"}), "auto", 1, compile_native)
    loaded = loader("m", 1, tower_version)
    graphs = {name for name in loaded.backends if loaded.signatures[name].kind == "predict"}
    assert answered.keys() == graphs - loaded.not_run.keys()
    assert answered["serving_default"] == dict.fromkeys(loaded.signatures["serving_default"].outputs, 1)
    assert "refused" not in answered.values()
    loaded.close()
