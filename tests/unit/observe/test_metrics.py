"""Metrics are counted under the names of TensorFlow Serving and of this server, and end with their model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.control.request_context import Subject
from service.errors import BackendFailure, IdOutOfRange, NotReady, Overloaded
from service.observe.metric_text import BATCH_ROWS, QUEUE, Rows, Times
from service.observe.metrics import MOST_SHOWN, SHOWN_SCRAPES, GoneModels, Metrics
from service.observe.request_metrics import Batches, CoreCounts
from service.tables.guarded_files import GuardedFiles
from service.types import State, TableCounts, VersionStatus
from service.versions.servable import LoadedServable
from tests.integration.process import ROOT
from tests.unit.observe.reports import finish, new_metrics, read
from tests.unit.versions.fakes import FakeNative, servable

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
    metrics.limit_bytes = 5000
    metrics.core = lambda: CoreCounts(held={"m": 450, "n": 6})
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


LOOKUP = Subject("http", "lookup", "m", 1, "lookup")


@pytest.fixture
def hasty_switches() -> Iterator[None]:
    """Makes threads interrupt each other a hundred times as often as by default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


def test_threads_that_count_at_the_same_time_lose_nothing(hasty_switches: None) -> None:
    metrics = new_metrics()
    is_over = threading.Event()
    seen: list[int] = []

    def scrape() -> None:
        while not is_over.is_set():
            seen.append(sum(cell.count for cell in metrics.requests.read()[0].successes.values()))

    def work() -> None:
        for _ in range(2000):
            finish(metrics, seconds=0.5, rows=2)
            finish(metrics, error=IdOutOfRange("x"))

    with ThreadPoolExecutor(5) as threads:
        scraper = threads.submit(scrape)
        workers = [threads.submit(work) for _ in range(4)]
        for worker in workers:
            worker.result()
        is_over.set()
        scraper.result()
    now, _ = metrics.requests.read()
    cell = now.successes[LOOKUP]
    assert (cell.count, cell.rows, cell.times.seconds) == (8000, 16000, 4000.0)
    assert now.failures == {(LOOKUP, "INVALID_ARGUMENT"): 8000}
    assert seen == sorted(seen), "a counter went back"


def test_a_version_that_is_gone_leaves_its_sums() -> None:
    metrics = new_metrics()
    for version in (1, 2):
        finish(metrics, version)
        finish(metrics, version, Overloaded("full"))
    finish(metrics, 1, model="other")
    metrics.requests.retire("m", 1)
    finish(metrics, 2)
    now, ever = metrics.requests.read()
    assert {(subject.model, subject.version) for subject in now.successes} == {("m", 2), ("other", 1)}
    sums = LOOKUP._replace(version=None)
    assert (ever.successes[sums].count, ever.successes[sums].rows) == (3, 9)
    assert ever.failures == {(sums._replace(signature=""), "UNAVAILABLE"): 2}
    metrics.requests.retire("m", 2)
    assert metrics.requests.read()[1].successes[sums].count == 3


def test_a_version_that_comes_back_counts_from_zero() -> None:
    metrics = new_metrics()
    finish(metrics)
    metrics.requests.retire("m", 1)
    finish(metrics)
    now, ever = metrics.requests.read()
    assert now.successes[LOOKUP].count == 1
    assert ever.successes[LOOKUP._replace(version=None)].count == 2


def test_reading_changes_nothing() -> None:
    metrics = new_metrics()
    finish(metrics)
    for _ in range(3):
        now, ever = metrics.requests.read()
    assert now.successes[LOOKUP].count == ever.successes[LOOKUP._replace(version=None)].count == 1


def test_metrics_of_two_servers_do_not_mix() -> None:
    first, second = new_metrics(), new_metrics()
    finish(first)
    assert second.requests.read()[0].successes == {}


# Bounds of the buckets: 10 * 1.8^k to six digits, computed in decimal arithmetic.
MICROSECONDS = (
    "10 18 32.4 58.32 104.976 188.957 340.122 612.22 1102 1983.59 3570.47 6426.84 11568.3 20823 37481.3 67466.4 121440 "
    "218591 393464 708235 1.27482e+06 2.29468e+06 4.13043e+06 7.43477e+06 1.33826e+07 2.40887e+07 4.33596e+07 "
    "7.80473e+07 1.40485e+08 2.52873e+08 4.55172e+08 8.19309e+08 1.47476e+09"
).split()
# Bounds of the buckets are 100 * 1.2^k: the first six and the last.
QUEUE_ENDS = (["100", "120", "144", "172.8", "207.36", "248.832"], "1.09205e+06")
OF_TWO = "1 2 4 8 16 32 64 128 256 512 1024 2048 4096 8192 16384".split()


def block(metrics: Metrics, name: str) -> list[str]:
    """Returns the lines of one family as they stand in the text."""
    lines = metrics.render()[0].decode().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"# TYPE {name} "))
    end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith("# ")), len(lines))
    return lines[start:end]


def buckets(name: str, labels: str, counts: dict[str, int]) -> list[str]:
    """Returns the lines of a histogram's buckets; counts: limit -> how many values are below it and the next limits."""
    lines, below = [], 0
    for limit in [*MICROSECONDS, "+Inf"]:
        below = counts.get(limit, below)
        lines.append(f'{name}_bucket{{{labels},le="{limit}"}} {below}')
    return lines


def test_requests_are_counted_by_model_and_status() -> None:
    metrics = new_metrics()
    for api, method in (("grpc", "Predict"), ("http", "predict"), ("http", "lookup")):
        finish(metrics, api=api, method=method)
    finish(metrics, 2)
    finish(metrics, 1, IdOutOfRange("x"))
    finish(metrics, None, Overloaded("full"), signature="")
    finish(metrics, None, IdOutOfRange("x"), model="", signature="")
    finish(metrics, 1, RuntimeError("a surprise"))
    finish(metrics, 1, KeyboardInterrupt())
    assert block(metrics, ":tensorflow:serving:request_count") == [
        "# TYPE :tensorflow:serving:request_count counter",
        ':tensorflow:serving:request_count{model_name="",status="INVALID_ARGUMENT"} 1',
        ':tensorflow:serving:request_count{model_name="m",status="CANCELLED"} 1',
        ':tensorflow:serving:request_count{model_name="m",status="INTERNAL"} 1',
        ':tensorflow:serving:request_count{model_name="m",status="INVALID_ARGUMENT"} 1',
        ':tensorflow:serving:request_count{model_name="m",status="OK"} 4',
        ':tensorflow:serving:request_count{model_name="m",status="UNAVAILABLE"} 1',
    ]


def test_latencies_are_in_microseconds_between_its_limits() -> None:
    metrics = new_metrics()
    finish(metrics, api="grpc", method="Predict", seconds=9e-6, run_seconds=5e-6)
    finish(metrics, api="grpc", method="Predict", version=2, seconds=12e-6, run_seconds=5e-6)
    finish(metrics, api="grpc", method="Predict", seconds=2000.0, run_seconds=5e-6)
    finish(metrics, 1, IdOutOfRange("x"), api="grpc", method="Predict")
    name, labels = ":tensorflow:serving:request_latency", 'model_name="m",API="Predict",entrypoint="GRPC"'
    assert block(metrics, name) == [
        f"# TYPE {name} histogram",
        *buckets(name, labels, {"10": 1, "18": 2, "+Inf": 3}),
        f"{name}_sum{{{labels}}} 2000000021.0",
        f"{name}_count{{{labels}}} 3",
    ]


def test_entrypoint_and_api_are_spelt_as_there() -> None:
    metrics = new_metrics()
    for api, method in (("grpc", "Predict"), ("grpc", "Classify"), ("http", "predict"), ("http", "lookup")):
        finish(metrics, api=api, method=method)
    found = read(metrics)[":tensorflow:serving:request_latency"]
    assert {(labels["API"], labels["entrypoint"]) for labels in found.labelled()} == {
        *(("Predict", "GRPC"), ("Classify", "GRPC"), ("predict", "REST"), ("lookup", "REST")),
    }


def test_the_runtime_is_tensorflows_for_graphs_only() -> None:
    metrics = new_metrics()
    finish(metrics, method="predict", run_seconds=0.25)
    finish(metrics, method="predict", signature="serving_default", kind="predict", run_seconds=0.5)
    finish(metrics, method="predict", signature="other", kind="predict", version=2, run_seconds=0.5)
    found = read(metrics)
    latency = found[":tensorflow:serving:runtime_latency"]
    of_model = {"model_name": "m", "API": "predict"}
    assert latency.value("_count", **of_model, runtime="TF1") == 2
    assert latency.value("_sum", **of_model, runtime="TF1") == 1_000_000
    assert latency.value("_sum", **of_model, runtime="lookup") == 250_000
    assert found[":tensorflow:serving:request_latency"].value("_count", **of_model, entrypoint="REST") == 3
    assert block(metrics, ":tensorflow:core:graph_runs")[1:] == [":tensorflow:core:graph_runs{} 2"]
    assert block(metrics, ":tensorflow:core:graph_run_time_usecs")[1:] == [
        ":tensorflow:core:graph_run_time_usecs{} 1000000"
    ]


def test_examples_are_counted_where_a_request_is_made_of_them() -> None:
    metrics = new_metrics()
    finish(metrics, method="predict", rows=100)
    finish(metrics, method="classify", rows=1)
    finish(metrics, api="grpc", method="Regress", rows=2)
    finish(metrics, api="grpc", method="MultiInference", rows=20_000)
    name = ":tensorflow:serving:request_example_counts"
    # A bucket counts the requests with fewer Examples than its limit, as in TensorFlow: a request of one Example is not
    # in the bucket of 1.
    below = {"1": 0, "2": 1, "4": 2}
    lines, count = [], 0
    for limit in OF_TWO:
        count = below.get(limit, count)
        lines.append(f'{name}_bucket{{model="m",le="{limit}"}} {count}')
    assert block(metrics, name) == [
        f"# TYPE {name} histogram",
        *lines,
        f'{name}_bucket{{model="m",le="+Inf"}} 3',
        f'{name}_sum{{model="m"}} 20003',
        f'{name}_count{{model="m"}} 3',
    ]
    assert block(metrics, ":tensorflow:serving:request_example_count_total")[1:] == [
        ':tensorflow:serving:request_example_count_total{model="m"} 20003'
    ]
    assert read(metrics)[":tensorflow:serving:request_count"].value(model_name="m", status="OK") == 3, (
        "TensorFlow Serving does not count a MultiInference"
    )


def test_warm_ups_are_shown_until_their_version_ends() -> None:
    metrics = new_metrics()
    for version, status, records in ((1, "OK", 3), (2, "DATA_LOSS", 0), (1, "OK", 3)):
        metrics.warmups.warmed_up(
            model="m", version=version, path=f"/models/m/{version}", status=status, seconds=0.001, records=records
        )
    assert block(metrics, ":tensorflow:serving:model_warmup_records_read") == [
        "# TYPE :tensorflow:serving:model_warmup_records_read counter",
        ':tensorflow:serving:model_warmup_records_read{model_path="/models/m/1",status="OK"} 6',
        ':tensorflow:serving:model_warmup_records_read{model_path="/models/m/2",status="DATA_LOSS"} 0',
    ]
    name, labels = ":tensorflow:serving:model_warmup_latency", 'model_path="/models/m/1",status="OK"'
    assert block(metrics, name)[1:35] == buckets(name, labels, {"1102": 2})
    assert f"{name}_sum{{{labels}}} 2000.0" in block(metrics, name)
    metrics.version_changed("m", VersionStatus(1, State.END))
    assert not any("/models/m/1" in line for line in block(metrics, name))


def times(*seconds: float) -> Times:
    """Returns a histogram of waits for a batch."""
    found = Times(QUEUE)
    for one in seconds:
        found.add(one)
    return found


def rows(*numbers: int) -> Rows:
    """Returns a histogram of numbers of rows."""
    found = Rows(BATCH_ROWS)
    for one in numbers:
        found.counts[bisect_right(BATCH_ROWS, one)] += 1
        found.total += one
    return found


def test_batches() -> None:
    metrics = new_metrics()
    metrics.batches = lambda: Batches(
        num_runs=2,
        num_requests=3,
        waits={"batch_threads": times(90e-6, 0.001, 3.0)},
        padding={4: rows(1, 0)},
        arrived=rows(2, 1),
        run=rows(4, 4),
        rejected={"UNAVAILABLE": 1},
    )
    found = read(metrics)
    batching = ":tensorflow:serving:batching_session:"
    assert block(metrics, batching + "wrapped_run_count")[1:] == [f"{batching}wrapped_run_count{{}} 2"]
    waits = found[batching + "queuing_latency"]
    limits = [labels["le"] for labels in waits.labelled() if "le" in labels]
    assert (limits[:6], limits[-2], len(limits)) == (*QUEUE_ENDS, 53)
    assert waits.value("_bucket", thread_pool_name="batch_threads", le="100") == 1
    assert waits.value("_bucket", thread_pool_name="batch_threads", le="1.09205e+06") == 2
    assert waits.value("_sum", thread_pool_name="batch_threads") == pytest.approx(3_001_090)
    assert found[batching + "input_batch_size"].value("_bucket", le="2") == 1
    assert found[batching + "input_batch_size"].value("_sum") == 3
    assert found[batching + "processed_batch_size"].value("_bucket", le="8192") == 2
    assert found[batching + "padding_size"].value("_sum", execution_batch_size=4) == 1
    assert found["embedding_server_queue_seconds"].value("_count") == 3
    assert found["embedding_server_batched_requests_total"].value() == 3
    assert found["embedding_server_batching_rejected_total"].value(code="UNAVAILABLE") == 1


def test_families_are_sorted_and_there_without_samples_too() -> None:
    lines = new_metrics().render()[0].decode().splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE :")]
    assert names == sorted(names)
    assert set(names) == {
        ":tensorflow:core:graph_run_time_usecs",
        ":tensorflow:core:graph_runs",
        *(
            f":tensorflow:serving:batching_session:{part}"
            for part in ("input_batch_size", "padding_size", "processed_batch_size")
        ),
        ":tensorflow:serving:batching_session:queuing_latency",
        ":tensorflow:serving:batching_session:wrapped_run_count",
        ":tensorflow:serving:model_warmup_latency",
        ":tensorflow:serving:model_warmup_records_read",
        ":tensorflow:serving:request_count",
        ":tensorflow:serving:request_example_count_total",
        ":tensorflow:serving:request_example_counts",
        ":tensorflow:serving:request_latency",
        ":tensorflow:serving:runtime_latency",
    }


def test_no_counter_goes_back_when_a_version_ends() -> None:
    metrics = new_metrics()
    finish(metrics, method="classify", kind="predict", run_seconds=0.5)
    finish(metrics, 1, BackendFailure("x"))
    before = {name: family.samples for name, family in read(metrics).items() if name.startswith(":")}
    metrics.version_changed("m", VersionStatus(1, State.END))
    after = {name: family.samples for name, family in read(metrics).items() if name.startswith(":")}
    assert after == before


@pytest.mark.parametrize("model", ['a"b', "a\\b", "a\nb", "mödel", 'x",le="1'])
def test_any_name_of_a_model_can_be_read_back(model: str) -> None:
    metrics = new_metrics()
    finish(metrics, model=model)
    finish(metrics, None, NotReady("loading"), model=model, signature="")
    name = ":tensorflow:serving:request_count"
    assert read(metrics)[name].value(model_name=model, status="OK") == 1
    parsed = {family.name: family for family in text_string_to_metric_families(metrics.render()[0].decode())}
    assert {sample.labels["model_name"] for sample in parsed[name].samples} == {model}


def test_a_removed_model_is_forgotten_after_some_scrapes() -> None:
    forgotten: list[str] = []
    gone = GoneModels(forgotten.append)
    gone.note(["a", "b"])
    for _ in range(100):
        gone.note(["a", "b"], scrapes=1)
    gone.note(["a"])
    for _ in range(SHOWN_SCRAPES):
        gone.note(["a"], scrapes=1)
    assert forgotten == []
    gone.note(["a"], scrapes=1)
    assert forgotten == ["b"]
    # "a" is found missing by a scrape, and not by a change of the list.
    for _ in range(SHOWN_SCRAPES):
        gone.note([], scrapes=1)
    assert forgotten == ["b"]
    gone.note([], scrapes=1)
    assert forgotten == ["b", "a"]


def test_a_model_that_comes_back_keeps_its_counters() -> None:
    forgotten: list[str] = []
    gone = GoneModels(forgotten.append)
    gone.note(["a"])
    gone.note([])
    for _ in range(5 * SHOWN_SCRAPES):
        gone.note(["a"], scrapes=1)
    assert forgotten == []


def test_a_server_that_nobody_scrapes_keeps_no_more_than_some_removed_models() -> None:
    forgotten: list[str] = []
    gone = GoneModels(forgotten.append)
    for number in range(MOST_SHOWN + 3):
        gone.note([f"m{number}"])
    gone.note([])
    assert sorted(forgotten) == ["m0", "m1", "m2"]


_PROGRAM = """
import logging, os, sys
from service.observe.logs import LogWriter
from service.observe.logs import configure_logging
from service.observe.logs import native_lines_in_log

writer = LogWriter(os.dup(2))
configure_logging("{level}", "json", writer)
with native_lines_in_log(writer):
    print("to standard output", flush=True)
    os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
    os.write(2, b"I0000 00:00:1795448396.756353   30164 port.cc:153] oneDNN is on\\n")
    os.write(2, b"2026-11-23 15:39:57.206753: W tensorflow/core/file.cc:210] slow\\nE0000 00:00:1.5 1 a.cc:1] wrong\\n")
    os.write(2, b"no level \\xff and 100%\\n\\n")
    print("of Python", file=sys.stderr)
    {last}
os.write(2, b"after\\n")
"""


def run(last: str = "pass", level: str = "info") -> tuple[int, list[Any]]:
    """Runs the test's program; returns its exit status, and each line of its standard error, parsed if it is JSON."""
    program = textwrap.dedent(_PROGRAM).format(last=last, level=level)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True)
    lines: list[Any] = []
    for line in done.stderr.decode("utf-8", "replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            lines.append(line)
        else:
            lines.append((record["level"], record["message"], record.get("source")))
    return done.returncode, lines


@pytest.mark.parametrize("level", ["info", "debug"])
def test_each_line_is_a_record_and_notes_are_for_debugging(level: str) -> None:
    notes = [("debug", "oneDNN is on", "port.cc:153")] if level == "debug" else []
    assert run(level=level) == (
        0,
        [
            ("warning", "to standard output", None),
            *notes,
            ("warning", "slow", "tensorflow/core/file.cc:210"),
            ("error", "wrong", "a.cc:1"),
            ("warning", "no level \\xff and 100%\nof Python", None),
            "after",
        ],
    )


@pytest.mark.core
def test_an_abort_leaves_the_last_line() -> None:
    status, lines = run('os.write(2, b"F0000 Check failed: 1 == 2\\n"); os.abort()')
    assert status == -signal.SIGABRT
    # The process may end before or after its thread has turned this line into a log record.
    last = "F0000 Check failed: 1 == 2"
    assert lines[-1] in (last, ("warning", last, None))


@pytest.mark.core
def test_a_crash_leaves_the_lines_that_are_not_written_yet() -> None:
    # The writer's thread can not run before the crash: the interpreter's lock is not released.
    last = 'sys.setswitchinterval(1e9); logging.error("reason"); import ctypes; ctypes.PyDLL(None).raise_(11)'
    status, lines = run(last.replace("raise_(11)", "raise(11)").replace(".raise(11)", "['raise'](11)"))
    assert status == -signal.SIGSEGV
    assert ("error", "reason", None) in lines
