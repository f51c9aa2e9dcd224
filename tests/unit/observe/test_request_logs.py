"""Logs begin and end with the list of models, and requests that a full queue drops are counted."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from service.artifact.protos import message_class
from service.artifact.tf_record import read_records
from service.engine.model_config import ModelConfig, RequestLogConfig
from service.observe import request_logs
from service.observe.request_logs import ModelLog, RecordFiles, RequestLogs
from tests.exposition import read_exposition
from tests.toy_model import masked_crc32c


def logs(**more: Any) -> RequestLogs:
    given: dict[str, Any] = {"tags": ["serve"], "max_bytes": 1 << 24}
    return RequestLogs(**(given | more), now=lambda: 1_700_000_000.7)


def model(folder: Path, rate: float = 1.0, name: str = "m") -> ModelConfig:
    return ModelConfig(name, "/m", request_log=RequestLogConfig(str(folder / name), rate))


def messages(folder: Path) -> list[Any]:
    """Returns the PredictionLogs of all closed files."""
    found = []
    for path in sorted(folder.glob("*.tfrecord")):
        with path.open("rb") as file:
            found += [
                message_class("tensorflow.serving.PredictionLog").FromString(data)
                for data in read_records(file, masked_crc32c)
            ]
    return found


def test_a_record_of_the_core_says_whose_it_is_and_when_it_was_answered(tmp_path: Path) -> None:
    own = logs()
    own.configure([model(tmp_path)])
    answered = message_class("tensorflow.serving.PredictionLog")()
    answered.predict_log.request.output_filter.append("y")
    own.recorders["m"].answered(7, "sig", 1_600_000_000, answered.SerializeToString())
    own.stop()
    assert own.recorders == {}
    (log,) = messages(tmp_path)
    spec = log.log_metadata.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 7, "sig")
    assert log.log_metadata.sampling_config.sampling_rate == 1
    assert list(log.log_metadata.saved_model_tags) == ["serve"]
    assert log.log_metadata.timestamp_secs == 1_600_000_000
    assert log.predict_log == answered.predict_log


def test_a_log_goes_on_where_its_config_stays_and_ends_where_it_goes(tmp_path: Path) -> None:
    own = logs()
    own.configure([model(tmp_path)])
    first = own.recorders["m"]
    own.configure([model(tmp_path), model(tmp_path, name="n")])
    assert own.recorders["m"] is first
    own.configure([model(tmp_path, 0.25), ModelConfig("n", "/n")])
    assert own.recorders["m"] is not first and list(own.recorders) == ["m"]
    assert own.recorders["m"].rate == 0.25
    # No request of model m is sampled at rate 0.0, so m needs no recorder.
    own.configure([model(tmp_path, 0.0)])
    assert own.recorders == {}
    own.stop()


def test_what_does_not_fit_in_the_queue_is_dropped_and_counted(tmp_path: Path) -> None:
    gate, begun = threading.Event(), threading.Event()

    class Slow(RecordFiles):
        def append(self, records: Any) -> None:
            begun.set()
            assert gate.wait(60)
            super().append(records)

    files = Slow(str(tmp_path / "m"), max_bytes=1 << 24, now=lambda: 0.0)
    config = RequestLogConfig(str(tmp_path / "m"), 1.0)
    log = ModelLog("m", config, files, tags=())
    for _ in range(request_logs.MAX_QUEUED + 5):
        log.answered(1, "sig", 0, b"")
    assert begun.wait(60)
    assert log.counts() == (0, 5, False)
    gate.set()
    log.stop()
    log.wait(60)
    assert log.counts() == (request_logs.MAX_QUEUED, 5, False)


def test_a_record_that_is_too_large_is_dropped(tmp_path: Path) -> None:
    own = logs()
    own.configure([model(tmp_path)])
    own.recorders["m"].answered(1, "sig", 0, bytes(request_logs.MAX_QUEUED_BYTES + 1))
    own.stop()
    assert messages(tmp_path) == []
    found = read_exposition("".join(f"{line}\n" for line in own.metric_lines()))
    assert found["embedding_server_request_log_dropped_total"].value(model="m") == 1
    assert found["embedding_server_request_log_records_total"].value(model="m") == 0
    assert found["embedding_server_request_log_disabled"].value(model="m") == 0


def test_without_a_log_there_are_no_numbers() -> None:
    own = logs()
    own.configure([ModelConfig("m", "/m")])
    found = read_exposition("".join(f"{line}\n" for line in own.metric_lines()))
    assert len(found) == 3
    assert not any(family.samples for family in found.values())
