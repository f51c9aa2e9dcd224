"""TensorFlow Serving's names of metrics: the text that its exporter would write, and when a series is counted."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.errors import BackendFailure, IdOutOfRange, NotReady, Overloaded
from service.observe.metric_text import BATCH_ROWS, QUEUE, Rows, Times
from service.observe.metrics import Metrics
from service.observe.request_metrics import Batches
from service.types import State, VersionStatus
from tests.unit.observe.reports import finish, new_metrics, read

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
