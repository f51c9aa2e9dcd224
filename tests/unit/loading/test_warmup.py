"""Warms versions up: with their own requests, recorded ones, and rows that were hot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from service.artifact import protos
from service.artifact.protos import message_class
from service.artifact.signature_def import read_signatures
from service.artifact.tf_record import MAX_WARMUP_RECORDS, WARMUP_PATH
from service.core.native_servable import CompiledServable, compile_native
from service.errors import ArtifactError, InputMismatch, InvalidRequest
from service.loading.kept_files import HotRowsFiles
from service.loading.loader import ServableLoader
from service.loading.warmup import replay_requests, warm_up
from service.reference.inputs import checked
from service.tables.backend import open_lookups
from service.tables.residency import Residency
from service.types import Array, ModelRef, SignatureSpec, TableCounts, Tensors, TensorSpec, ragged_features
from service.versions.counts import FeatureCounts, FeatureIds, SampledRows
from service.versions.servable import LoadedServable, NativeServable, Servable
from service.wire.predict_proto import decode_request, decode_response
from tests.toy_model import manifest_of, proto_field, write_toy_model
from tests.toy_policies import write_policy_model
from tests.unit.artifact.test_encodings import record
from tests.unit.versions.fakes import FakeBackend, FakeNative, predict_spec, regress_spec, servable


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
    manifest = manifest_of(artifact)
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
@pytest.mark.core
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
    loader = ServableLoader(frozenset({"serve"}), "auto", compile_native)
    loaded = loader("m", 1, tower_version)
    graphs = {name for name in loaded.backends if loaded.signatures[name].kind == "predict"}
    assert answered.keys() == graphs - loaded.not_run.keys()
    assert answered["serving_default"] == dict.fromkeys(loaded.signatures["serving_default"].outputs, 1)
    assert "refused" not in answered.values()
    loaded.close()


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


@pytest.mark.core
def test_a_version_is_served_only_if_its_records_run(tmp_path: Path) -> None:
    artifact = write_toy_model(tmp_path / "1")
    write(artifact, lookup_log(1))
    loader = ServableLoader(frozenset({"serve"}), "off", compile_native)
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


@pytest.mark.core
def test_tells_how_a_replay_ended(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    artifact = write_toy_model(tmp_path / "1")
    loader = ServableLoader(
        frozenset({"serve"}),
        "off",
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


class Sampling:
    """A native servable that has sampled table `tag`. Concurrency: any thread."""

    num_holders = 0

    def table_counts(self) -> dict[str, TableCounts]:
        return {"tag": TableCounts(oov_keys=7)}

    def feature_counts(self) -> FeatureCounts:
        return {"tag": {"tags": FeatureIds(100, 3, 1)}}

    def hot_rows(self, table: str, most: int) -> SampledRows | None:
        return SampledRows(10, 160, 3, 0, ((1, 96), (0, 48), (3, 16))[:most]) if table == "tag" else None


def sampled(tmp_path: Path, name: str = "toy", version: int = 1) -> Servable:
    loader = ServableLoader(frozenset({"serve"}), "off", compile_native)
    servable = loader(name, version, write_toy_model(tmp_path / "model"))
    return replace(servable, native=cast(NativeServable, Sampling()))


def test_traffic_has_keys_shares_and_exact_counts(tmp_path: Path) -> None:
    traffic = sampled(tmp_path).traffic("tag", 2)
    assert traffic is not None
    assert [tuple(row) for row in traffic.rows] == [(1, "red", "red", 96, 0.6), (0, None, None, 48, 0.3)]
    assert (traffic.lookups, traffic.sampled, traffic.distinct, traffic.oov_keys) == (160, 10, 3, 7)
    assert traffic.features["tags"] == FeatureIds(100, 3, 1)
    assert (traffic.top_share(1), traffic.top_share(100)) == (0.6, pytest.approx(0.9))
    assert sampled(tmp_path / "2").traffic("user", 2) is None


def test_a_file_has_the_rows_of_a_version_and_a_load_reads_them(tmp_path: Path) -> None:
    servable = sampled(tmp_path, "a/b", 3)
    files = HotRowsFiles(str(tmp_path / "hot"), lambda: [LoadedServable(servable, 0)])
    files.write()
    lines = (tmp_path / "hot" / "a%2Fb" / "3.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"table": "tag", "id": 1, "key": "red", "lookups": 96} and len(lines) == 3
    assert {table: ids.tolist() for table, ids in files.read("a/b", 3).items()} == {"tag": [1, 0, 3]}
    # A version without a file of hot rows reads the file of the next older version; files of newer versions are
    # ignored.
    assert files.read("a/b", 12).keys() == {"tag"} and not files.read("a/b", 2) and not files.read("b", 3)
    read: list[Any] = []

    class Watched(Residency):
        def apply(self, artifact: Path, tables: Any, hot: Any = (), **more: Any) -> None:
            super().apply(artifact, tables, hot, **more)
            read.append(hot)

    loader = ServableLoader(frozenset({"serve"}), "off", compile_native, residency=Watched(), hot_rows=files.read)
    loader("a/b", 4, tmp_path / "model").close()
    assert [ids.tolist() for ids in read[0].values()] == [[1, 0, 3]]


def test_without_files_an_older_version_that_answers_names_the_hot_rows(tmp_path: Path) -> None:
    available = [LoadedServable(sampled(tmp_path / str(version), "m", version), 0) for version in (2, 3)]
    files = HotRowsFiles("", lambda: available)
    for version in (3, 4):
        found = files.newest("m", version)
        assert {table: ids.tolist() for table, ids in found.items()} == {"tag": [1, 0, 3]}
    assert files.newest("m", 1) == files.newest("n", 3) == files.read("m", 3) == {}


def test_no_name_of_a_model_leads_out_of_the_folder(tmp_path: Path) -> None:
    available = [LoadedServable(sampled(tmp_path / "models" / str(n), name), 0) for n, name in enumerate(("..", "."))]
    HotRowsFiles(str(tmp_path / "hot"), lambda: available).write()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hot", "models"]
    assert sorted(path.name for path in (tmp_path / "hot").iterdir()) == ["%2E", "%2E%2E"]


def test_a_damaged_file_is_logged_and_reads_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = HotRowsFiles(str(tmp_path), list)
    for number, text in enumerate(("{", "[]", '{"table": "t"}', '{"table": "t", "id": 1e400}', "\xff")):
        folder = tmp_path / f"m{number}"
        folder.mkdir()
        (folder / "1.jsonl").write_bytes(text.encode("latin-1"))
        assert files.read(f"m{number}", 1) == {}
    assert len([one for one in caplog.records if one.message == "hot rows can not be read"]) == 5


def test_a_folder_that_can_not_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "hot").write_text("a file")
    servable = sampled(tmp_path)
    HotRowsFiles(str(tmp_path / "hot"), lambda: [LoadedServable(servable, 0)]).write()
    assert [one.message for one in caplog.records] == ["hot rows are not written"]
