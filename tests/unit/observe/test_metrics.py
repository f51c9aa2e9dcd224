"""The metrics have our own names, and the exposition tells what each of our families is."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.engine.admission import Limits
from service.engine.servable import LoadedServable
from service.errors import IdOutOfRange, Overloaded
from service.observe.metric_text import QUEUE, Times
from service.observe.metrics import Metrics
from service.observe.request_metrics import Batches
from service.tables.guarded_files import GuardedFiles
from service.types import State, TableCounts, VersionStatus
from tests.unit.engine.fakes import FakeNative, servable
from tests.unit.observe.reports import finish, new_metrics, read

LABELS = {"api": "http", "model": "m", "signature": "lookup", "version": 1}


def test_counts_requests_rows_and_seconds_of_success() -> None:
    metrics = new_metrics()
    finish(metrics)
    finish(metrics, rows=4, seconds=0.003, method="predict")
    finish(metrics, api="grpc", method="Predict")
    found = read(metrics)
    requests = found["embedding_server_requests_total"]
    assert requests.value(**LABELS, code="OK") == 2
    assert requests.value(**(LABELS | {"api": "grpc"}), code="OK") == 1
    assert found["embedding_server_rows_total"].value(**LABELS) == 7
    seconds = found["embedding_server_request_seconds"]
    assert seconds.value("_count", **LABELS) == 2
    assert seconds.value("_sum", **LABELS) == pytest.approx(0.004)
    limits = "2e-05 5e-05 0.0001 0.00025 0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1.0 2.5 10.0 +Inf"
    counts = [seconds.value("_bucket", **LABELS, le=limit) for limit in limits.split()]
    assert counts == [0] * 5 + [1, 1] + [2] * 11
    of_both_wires = {name: value for name, value in LABELS.items() if name != "api"}
    assert found["embedding_server_run_seconds"].value("_bucket", **of_both_wires, le="2e-05") == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IdOutOfRange("id"), "INVALID_ARGUMENT"),
        (Overloaded("full"), "UNAVAILABLE"),
        (RuntimeError("a surprise"), "INTERNAL"),
        (KeyboardInterrupt(), "CANCELLED"),
        (GeneratorExit(), "CANCELLED"),
    ],
)
def test_errors_count_by_code_and_in_nothing_else(error: BaseException, code: str) -> None:
    metrics = new_metrics()
    finish(metrics, error=error)
    found = read(metrics)
    assert found["embedding_server_requests_total"].labelled() == [
        {"api": "http", "code": code, "model": "m", "signature": "lookup", "version": "1"}
    ]
    for part in ("request_seconds", "run_seconds", "rows_total"):
        assert not found[f"embedding_server_{part}"].samples


def test_what_names_nothing_counts_without_names() -> None:
    metrics = new_metrics()
    finish(metrics, version=None, error=IdOutOfRange("x"), model="", signature="")
    labels = {"api": "http", "code": "INVALID_ARGUMENT", "model": "", "signature": "", "version": ""}
    assert read(metrics)["embedding_server_requests_total"].labelled() == [labels]


def test_shows_the_state_of_every_version() -> None:
    metrics = new_metrics()
    metrics.version_changed("m", VersionStatus(1, State.AVAILABLE))
    metrics.version_changed("m", VersionStatus(2, State.LOADING))
    states = read(metrics)["embedding_server_version_state"]
    assert (states.value(model="m", version=1), states.value(model="m", version=2)) == (30, 20)


def test_a_version_that_was_unloaded_takes_its_series_along() -> None:
    metrics = new_metrics()
    for version in (1, 2):
        metrics.version_changed("m", VersionStatus(version, State.AVAILABLE))
        finish(metrics, version)
        finish(metrics, version, IdOutOfRange("x"))
    finish(metrics, 1, model="other")
    for state in (State.UNLOADING, State.END):
        metrics.version_changed("m", VersionStatus(1, state))
    found = read(metrics)
    kept = {
        (labels["model"], labels["version"])
        for family in found.values()
        for labels in family.labelled()
        if "version" in labels and "model" in labels
    }
    assert kept == {("m", "2"), ("other", "1")}
    assert found["embedding_server_version_state"].value(model="m", version=2) == 30


def test_a_failed_load_stays_visible() -> None:
    metrics = new_metrics()
    metrics.version_changed("m", VersionStatus(2, State.END, "FAILED_PRECONDITION", "broken"))
    assert read(metrics)["embedding_server_version_state"].value(model="m", version=2) == 50
    metrics.version_changed("m", VersionStatus(2, State.UNKNOWN))
    assert not read(metrics)["embedding_server_version_state"].samples, "until status tells of it no more"


def test_an_error_and_how_often_a_load_failed_are_told_until_it_loads() -> None:
    metrics = new_metrics()
    told = []
    for state, code in [
        *[(State.START, "OK"), (State.LOADING, "OK"), (State.END, "FAILED_PRECONDITION")] * 2,
        *[(State.START, "OK"), (State.LOADING, "OK"), (State.AVAILABLE, "OK")],
        *[(State.UNLOADING, "OK"), (State.END, "DATA_LOSS"), (State.UNKNOWN, "OK")],
    ]:
        metrics.version_changed("m", VersionStatus(2, state, code))  # type: ignore[arg-type]
        found = read(metrics)
        failures = found["embedding_server_version_load_failures"].samples.values()
        told.append((*(labels["code"] for labels in found["embedding_server_version_error"].labelled()), *failures))
    assert told == [
        *[(), (), ("FAILED_PRECONDITION", 1), (1,), (1,), ("FAILED_PRECONDITION", 2), (2,), (2,), ()],
        # A version whose files are damaged is no failed load: only its error code is shown, for as long as it is END.
        *[(), ("DATA_LOSS",), ()],
    ]


def test_tells_what_may_be_in_flight_and_what_is() -> None:
    metrics = new_metrics()
    assert not read(metrics)["embedding_server_in_flight_limit_bytes"].samples
    metrics.limits = Limits(bytes=5000)
    metrics.held = lambda: {"m": 400}
    metrics.admission.held_by_core({"m": 50, "n": 6})
    found = read(metrics)
    assert found["embedding_server_in_flight_bytes"].value(model="m") == 450
    assert found["embedding_server_in_flight_bytes"].value(model="n") == 6
    assert found["embedding_server_in_flight_limit_bytes"].value() == 5000


def test_tells_which_version_answers_before_it_is_verified() -> None:
    files = GuardedFiles()
    metrics = Metrics(lambda: [LoadedServable(servable(3, files=files), 0)])

    def told() -> tuple[float, float]:
        found = read(metrics)
        verified, due = (found[f"embedding_server_tables_{part}"] for part in ("verified", "verification_due"))
        return verified.value(model="m", version=3), due.value(model="m", version=3)

    seen = [told()]
    files.is_verification_due = True
    seen.append(told())
    files.is_verified, files.is_verification_due = True, False
    assert [*seen, told()] == [(0, 0), (0, 1), (1, 0)]


def test_shows_what_was_read_of_each_table_and_who_holds_a_version() -> None:
    counts = {"user": TableCounts(7, 2, 1, 40), "item": TableCounts()}
    native = FakeNative()
    native.table_counts = lambda: counts  # type: ignore[method-assign]
    metrics = Metrics(lambda: [LoadedServable(servable(3, native=native), 2)])
    found = read(metrics)
    assert found["embedding_server_requests_in_flight"].value(model="m", version=3) == 2
    labels = {"model": "m", "table": "user", "version": 3}
    values = {
        part: found[f"embedding_server_table_{part}_total"].value(**labels)
        for part in ("ids", "missing_ids", "oov_keys", "read_bytes")
    }
    assert values == {"ids": 7, "missing_ids": 2, "oov_keys": 1, "read_bytes": 40}
    assert found["embedding_server_table_ids_total"].value(**(labels | {"table": "item"})) == 0


def test_the_text_holds_the_process_and_every_family_of_ours_says_what_it_is() -> None:
    body, content_type = new_metrics().render()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    lines = body.decode().splitlines()
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE embedding_server_")}
    told = {line.split()[2] for line in lines if line.startswith("# HELP ") and len(line.split()) > 3}
    assert typed and typed <= told


def test_prometheus_clients_own_reader_finds_the_same() -> None:
    metrics = new_metrics()
    finish(metrics)
    finish(metrics, kind="predict", method="Predict", api="grpc", signature="serving_default")
    finish(metrics, error=IdOutOfRange("x"))
    waits = Times(QUEUE)
    waits.add(0.1)
    metrics.batches = lambda: Batches(1, 1, {"": waits})
    text = metrics.render()[0].decode()
    # prometheus_client's parser appends _total to the name of every counter, as OpenMetrics wants.
    theirs = {
        (sample.name.removesuffix("_total"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    ours = {
        (name.removesuffix("_total"), frozenset(labels)): value
        for family in read(metrics).values()
        for (name, labels), value in family.samples.items()
    }
    assert theirs.keys() == ours.keys()
    assert all(theirs[key] == value for key, value in ours.items() if not key[0].startswith(("process_", "python_")))
