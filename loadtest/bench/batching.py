"""Measures how much faster batching makes many clients, and how much slower a single client.

Two servers on loopback serve the same SavedModel, a tower of dense layers over one row of numbers: one batches, the
other does not. In each round each server in turn gets the same number of one-row requests from N concurrent clients; a
client sends its next request when it has the answer. Answers are compared once. The output has medians over the rounds
and their ratio.

    python -m loadtest.bench.batching
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc

from loadtest.bench.lookup_vs_graph import MODEL, machine, write
from loadtest.live_server import LiveServer
from loadtest.wire import PREDICT_METHOD, message_classes

DT_FLOAT = 1
PARAMETERS = """
max_batch_size { value: 64 }
batch_timeout_micros { value: %d }
max_enqueued_batches { value: 1000 }
num_batch_threads { value: %d }
"""


def main() -> None:
    """Measures a server with and one without batching; prints one line per number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=64, help="per server, round and number of clients")
    parser.add_argument("--width", type=int, default=1024, help="of each layer")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch_timeout_micros", type=int, default=0)
    parser.add_argument("--num_batch_threads", type=int, default=2)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_model(folder / "model" / "1", options.width, options.layers)
        file = folder / "batching.txt"
        file.write_text(PARAMETERS % (options.batch_timeout_micros, options.num_batch_threads))
        flags = [f"--model_name={MODEL}", f"--model_base_path={folder / 'model'}"]
        batched = ["--enable_batching", f"--batching_parameters_file={file}"]
        servers = [stack.enter_context(LiveServer(*flags, *more)).ready() for more in (batched, [])]
        calls = [call_of(stack, server.grpc) for server in servers]
        requests = [request_of(options.width, number) for number in range(16)]
        for request in requests:
            ours, theirs = (call(request).outputs["y"].float_val[0] for call in calls)
            assert abs(ours - theirs) <= 1e-5 * max(abs(theirs), 1), "batching changes an answer"
        write(machine())
        write(f"tower of {options.layers} layers of {options.width}, {options.requests} requests a round")
        write(f"{'clients':>7} {'batched /s':>11} {'alone /s':>9} {'ratio':>6}   median ms {'batched':>8} {'alone':>8}")
        for clients in options.clients:
            rates, latencies = measure(calls, requests, clients, options)
            ours, theirs = (statistics.median(r) for r in rates)
            ours_ms, theirs_ms = (1e3 * statistics.median(seconds) for seconds in latencies)
            write(
                f"{clients:>7} {ours:>11.0f} {theirs:>9.0f} {ours / theirs:>6.2f}   {ours_ms:>18.2f} {theirs_ms:>8.2f}"
            )


def measure(
    calls: list[Any], requests: list[Any], clients: int, options: argparse.Namespace
) -> tuple[list[list[float]], list[list[float]]]:
    """Returns, for each server, the requests per second of each round and the seconds of each request."""
    rates: list[list[float]] = [[], []]
    latencies: list[list[float]] = [[], []]
    with ThreadPoolExecutor(clients) as pool:
        for number in range(options.rounds + 1):
            # In each round the other server is measured first, because the second server finds the first one's weights
            # in the processor's caches.
            for i in (0, 1) if number % 2 else (1, 0):
                call, each = calls[i], options.requests // clients

                def ask(client: int, call: Any = call, each: int = each) -> list[float]:
                    return [timed(call, requests[(client + k) % len(requests)]) for k in range(each)]

                started = time.perf_counter()
                seconds = [s for client in pool.map(ask, range(clients)) for s in client]
                # The first round is not counted, because it only warms up connections and threads.
                if number:
                    rates[i].append(len(seconds) / (time.perf_counter() - started))
                    latencies[i] += seconds
    return rates, latencies


def timed(call: Any, request: Any) -> float:
    """Calls a method with a request, and returns the seconds until the answer."""
    started = time.perf_counter()
    call(request)
    return time.perf_counter() - started


def call_of(stack: ExitStack, address: str) -> Any:
    """Returns a callable that calls the Predict method of the server at an address."""
    request_class, response_class = message_classes()
    channel = stack.enter_context(grpc.insecure_channel(address))
    return channel.unary_unary(PREDICT_METHOD, request_class.SerializeToString, response_class.FromString)


def request_of(width: int, number: int) -> Any:
    """Returns a PredictRequest that has one row of numbers."""
    request = message_classes()[0]()
    request.model_spec.name = MODEL
    tensor = request.inputs["x"]
    tensor.dtype = DT_FLOAT
    for size in (1, width):
        tensor.tensor_shape.dim.add().size = size
    tensor.float_val.extend(((number + 1) * i % 17) / 17 for i in range(width))
    return request


def write_model(folder: Path, width: int, layers: int) -> None:
    """Saves a dense tower as a SavedModel."""
    import tensorflow as tf

    tf.random.set_seed(0)
    module = tf.Module()
    module.layers = [tf.Variable(tf.random.normal([width, width], stddev=width**-0.5)) for _ in range(layers)]

    def tower(x: Any) -> Any:
        for layer in module.layers:
            x = tf.nn.relu(x @ layer)
        return {"y": tf.reduce_sum(x, axis=1)}

    spec = tf.TensorSpec([None, width], tf.float32, "x")
    tf.saved_model.save(module, str(folder), signatures=tf.function(tower, input_signature=[spec]))


if __name__ == "__main__":
    main()
