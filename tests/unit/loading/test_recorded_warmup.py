"""Recorded requests are replayed before a version is served, and one that fails fails the load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact import protos
from service.artifact.protos import message_class
from service.artifact.tf_record import MAX_WARMUP_RECORDS, WARMUP_PATH
from service.engine.servable import Servable
from service.errors import ArtifactError, InputMismatch
from service.loading.loader import ServableLoader
from service.loading.warmup import replay_requests
from service.native.choice import has_core
from service.native.native_servable import compile_native
from service.types import ModelRef
from tests.toy_model import proto_field, write_toy_model
from tests.unit.artifact.test_tf_record import record
from tests.unit.engine.fakes import FakeBackend, FakeNative, predict_spec, regress_spec, servable


def predict_log(signature: str = "", model: str = "anything", **inputs: list[float]) -> bytes:
    """Returns the bytes of a PredictionLog with one Predict."""
    log = message_class("tensorflow.serving.PredictionLog")()
    request = log.predict_log.request
    if model:
        request.model_spec.name = model
    if signature:
        request.model_spec.signature_name = signature
    for name, values in inputs.items():
        tensor = request.inputs[name]
        tensor.dtype = 1
        tensor.tensor_shape.dim.add(size=len(values))
        tensor.float_val.extend(values)
    return bytes(log.SerializeToString())


def write(artifact: Path, *logs: bytes) -> Path:
    """Writes the recorded requests of an artifact; returns their file."""
    path = artifact / WARMUP_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(record, logs)))
    return path


def replay(artifact: Path, native: FakeNative, **more: Any) -> None:
    """Replays on a model x -> y, z."""
    replay_requests(servable(native=native), artifact, **({"iterations": 1} | more))


def test_without_a_file_nothing_is_run(tmp_path: Path) -> None:
    native = FakeNative()
    replay(tmp_path, native)
    assert native.runs == []


def test_each_request_is_run_as_it_was_recorded(tmp_path: Path) -> None:
    of_version = message_class("tensorflow.serving.PredictionLog")()
    of_version.ParseFromString(predict_log("serving_default", model="", x=[3.0]))
    of_version.predict_log.request.model_spec.version.value = 7
    of_version.predict_log.request.output_filter.append("y")
    # Field 15 of a PredictRequest is unknown.
    of_version.predict_log.request.MergeFromString(proto_field(15, b"new"))
    write(tmp_path, predict_log(x=[1.0, 2.0]), b"", of_version.SerializeToString())
    native = FakeNative()
    replay(tmp_path, native, iterations=2)
    assert [(name, run["x"].tolist(), outputs) for name, run, outputs in native.runs] == [
        ("", [1.0, 2.0], ()),
        ("", [1.0, 2.0], ()),
        ("serving_default", [3.0], ("y",)),
        ("serving_default", [3.0], ("y",)),
    ]
    assert set(native.refs) == {ModelRef("m")}


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (predict_log("nope", x=[1.0]), 'warmup record number 2 failed: Serving signature key "nope" not found.'),
        (b"\xff\xff", "Failed to parse warmup record: number 2 from "),
        (b"\x2a\x00", "Unsupported log_type for warmup: 5"),
        (b"\x3a\x00", "Unsupported log_type for warmup: 7"),
    ],
)
def test_a_record_that_fails_is_named(tmp_path: Path, log: bytes, reason: str) -> None:
    path = write(tmp_path, predict_log(x=[1.0]), log)
    with pytest.raises(ArtifactError) as caught:
        replay(tmp_path, FakeNative())
    assert reason in caught.value.message and str(path) in caught.value.message


def test_a_record_of_too_many_fields_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Field 2 of a PredictionLog is a message, whose fields are counted as well.
    log = proto_field(2, proto_field(1, b"") * 200)
    path = tmp_path / WARMUP_PATH
    path.parent.mkdir(parents=True)
    path.write_bytes(record(log))
    monkeypatch.setattr(protos, "MAX_FIELDS", 150)
    with pytest.raises(ArtifactError, match="warmup record number 1 has .* bytes with more than 150 protobuf fields"):
        replay_requests(servable(1), tmp_path, 1)


@pytest.mark.parametrize(
    ("error", "text"), [(InputMismatch("bad x"), "bad x"), (RuntimeError("no"), "RuntimeError: no")]
)
def test_a_record_that_the_core_refuses_fails_the_load(tmp_path: Path, error: Exception, text: str) -> None:
    write(tmp_path, predict_log(x=[1.0]))

    def fail(inputs: Any) -> dict[str, np.ndarray]:
        raise error

    with pytest.raises(ArtifactError, match=f"warmup record number 1 failed: {text}$"):
        replay(tmp_path, FakeNative(fail))


def test_a_thousand_records_are_the_most(tmp_path: Path) -> None:
    native = FakeNative()
    write(tmp_path, *[predict_log(x=[1.0])] * MAX_WARMUP_RECORDS)
    replay(tmp_path, native)
    assert len(native.runs) == 1000
    path = write(tmp_path, *[predict_log(x=[1.0])] * (MAX_WARMUP_RECORDS + 1))
    with pytest.raises(ArtifactError, match=rf"^Number of warmup records exceeds the maximum \(1000\) at {path}$"):
        replay(tmp_path, native)


def test_what_is_to_stay_cold_is_passed_over(tmp_path: Path) -> None:
    # The second recorded request lacks the input of its signature.
    write(tmp_path, predict_log(x=[1.0]), predict_log(), examples_log("classify_log", signature=""))
    native = FakeNative()
    replay(tmp_path, native, cold=frozenset({"serving_default"}))
    replay_requests(
        Servable("m", 1, {"serving_default": predict_spec()}, {}), tmp_path, 1, frozenset({"serving_default"})
    )
    assert native.runs == []


def examples_log(kind: str, method_name: str = "", signature: str = "kinds") -> bytes:
    """Returns a PredictionLog of a request of this kind, with two examples, for a signature."""
    log = message_class("tensorflow.serving.PredictionLog")()
    request = getattr(log, kind).request
    spec = request.tasks.add(method_name=method_name).model_spec if method_name else request.model_spec
    spec.signature_name = signature
    for _ in range(2):
        request.input.example_list.examples.add()
    return bytes(log.SerializeToString())


@pytest.mark.parametrize(
    ("kind", "method", "request_type"),
    [
        ("classify_log", "Classify", "ClassificationRequest"),
        ("regress_log", "Regress", "RegressionRequest"),
        ("multi_inference_log", "MultiInference", "MultiInferenceRequest"),
    ],
)
def test_requests_of_examples_are_run_too(tmp_path: Path, kind: str, method: str, request_type: str) -> None:
    method_name = "tensorflow/serving/regress" if kind == "multi_inference_log" else ""
    log = message_class("tensorflow.serving.PredictionLog").FromString(examples_log(kind, method_name, "kinds"))
    is_multi = kind == "multi_inference_log"
    if is_multi:
        log.multi_inference_log.request.tasks.add(method_name=method_name).model_spec.signature_name = "cold"
    write(tmp_path, log.SerializeToString())
    native = FakeNative()
    signatures = {name: regress_spec(name) for name in ("kinds", "cold")}
    model = Servable("m", 1, signatures, dict.fromkeys(signatures, FakeBackend()), native=native)
    assert replay_requests(model, tmp_path, 2, frozenset({"cold"})) == 1
    assert [name for name, _ in native.others] == [method] * 2
    sent = message_class(f"tensorflow.serving.{request_type}").FromString(native.others[0][1])
    specs = [task.model_spec for task in sent.tasks] if is_multi else [sent.model_spec]
    assert [(spec.name, spec.signature_name) for spec in specs] == [("m", "kinds")]
    assert len(sent.input.example_list.examples) == 2


def lookup_log(user: int | None) -> bytes:
    """Returns the bytes of a record with a lookup in the toy model; None: the lookup lacks its ids."""
    log = message_class("tensorflow.serving.PredictionLog")()
    log.predict_log.request.model_spec.signature_name = "lookup"
    if user is not None:
        tensor = log.predict_log.request.inputs["user"]
        tensor.dtype = 9
        tensor.tensor_shape.dim.add(size=1)
        tensor.int64_val.append(user)
    return bytes(log.SerializeToString())


@pytest.mark.skipif(not has_core(), reason="the native core is not built")
def test_a_version_is_served_only_if_its_records_run(tmp_path: Path) -> None:
    artifact = write_toy_model(tmp_path / "1")
    write(artifact, lookup_log(1))
    loader = ServableLoader(frozenset({"serve"}), "off", 1, compile_native)
    servable = loader("toy", 1, artifact)
    assert servable.all_table_counts()["user"].ids == 0, "counts are of clients' requests"
    servable.close()
    for user, reason in (
        (10**6, "id 1000000 at position 0 is out of range"),
        (None, "needs at least one feature of: tags,"),
    ):
        write(artifact, lookup_log(user))
        with pytest.raises(ArtifactError, match=f"warmup record number 1 failed: .*{reason}"):
            loader("toy", 1, artifact)
    replace(loader, warmup_iterations=0)("toy", 1, artifact).close()


@pytest.mark.skipif(not has_core(), reason="the native core is not built")
def test_tells_how_a_replay_ended(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    artifact = write_toy_model(tmp_path / "1")
    loader = ServableLoader(
        frozenset({"serve"}),
        "off",
        1,
        on_warmup=lambda **warmup: told.append(warmup),
        compile_native=compile_native,
    )
    loader("toy", 1, artifact)
    assert told == [], "there was nothing to replay"
    write(artifact, b"", b"")
    loader("toy", 1, artifact)
    write(artifact, predict_log("nobody"))
    with pytest.raises(ArtifactError):
        loader("toy", 1, artifact)
    assert all(warmup.pop("seconds") >= 0 for warmup in told)
    of_version = {"model": "toy", "version": 1, "path": str(artifact)}
    assert told == [
        of_version | {"status": "OK", "records": 2},
        of_version | {"status": "FAILED_PRECONDITION", "records": 0},
    ]
