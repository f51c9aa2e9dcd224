"""The kinds of requests that loadtest.bench.overload sends, each as one gRPC message."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.bench.messages import GRPC, GRPC_KEYS
from loadtest.bench.workloads import FULL, Data
from loadtest.wire import message_classes

# Names of two models that are served beside the benchmark's own: one has string keys, the graph of the other runs
# whole.
KEYS, GRAPH = "keys", "graph"
# A field that PredictRequest does not have: protobuf ignores it, and the core forwards the request for it.
UNKNOWN_FIELD = b"\x78\x01"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request."""

    name: str
    message: bytes


def light() -> Kind:
    """Returns a lookup of one row, which a client sends at fixed times beside each load."""
    return Kind("lookup", GRPC.encode("W1", Data(FULL).requests("W1")[0])[0])


def kinds() -> list[Kind]:
    """Returns all kinds of requests that the benchmark measures."""
    data = Data(FULL)

    def message(workload: str) -> bytes:
        return GRPC.encode(workload, data.requests(workload)[0])[0]

    keys = message_classes()[0].FromString(GRPC_KEYS.encode("W2", data.requests("W2")[0])[0])
    keys.model_spec.name = KEYS
    graph = message_classes()[0]()
    graph.model_spec.name = GRAPH
    tensor = graph.inputs["x"]
    tensor.dtype = 1
    tensor.tensor_shape.dim.add().size = 1
    tensor.float_val.append(3.0)
    return [
        light(),
        Kind("batch", message("W2")),
        Kind("strings", keys.SerializeToString()),
        Kind("large", message("W3")),
        Kind("tower", message("W5")),
        Kind("forwarded", message("W2") + UNKNOWN_FIELD),
        Kind("graph", graph.SerializeToString()),
    ]
