"""Takes one foreign model through everything: build, adopt, serve twice, compare, time."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.foreign.adopting import Adopted, adopt
from loadtest.foreign.comparing import Refused, Tally, compare
from loadtest.foreign.kinds import Tensors
from loadtest.foreign.models import SKIPPED, ForeignModel
from loadtest.foreign.random_requests import RandomRequests
from loadtest.foreign.reference import Reference
from loadtest.foreign.speed import NUM_REQUESTS, NUM_ROWS, Speed, measure
from loadtest.foreign.wires import GrpcWire, RestWire, from_json, has_json_form
from loadtest.live_server import LiveServer

# Of the requests over gRPC, how many go over REST as well.
_REST_SHARE = 10
# Of these, those that TensorFlow answers are timed.
_MOST_DRAWN = 64
# Its name on both servers, so that answers are of the same size.
MODEL = "foreign"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done with each model.

    requests: over gRPC, of each signature.
    seconds: of each turn of the timing; 0 leaves it out.
    rounds: turns of each server.
    """

    requests: int = 500
    seconds: float = 1.0
    rounds: int = 3
    scale: int = 1


@dataclass(slots=True)
class SignatureResult:
    """One signature: by wire, the adopted version's answers and the original's, both held against TensorFlow's."""

    adopted: dict[str, Tally] = field(default_factory=dict)
    original: dict[str, Tally] = field(default_factory=dict)
    speed: dict[str, Speed] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON object."""
        kinds = {"adopted": self.adopted, "original": self.original, "speed": self.speed}
        return {key: {wire: found.as_json() for wire, found in wires.items()} for key, wires in kinds.items()}


@dataclass(slots=True)
class ModelResult:
    """One model. fault: why there is nothing more, or not all; "" where all of it ran."""

    name: str
    fault: str = ""
    adopted: Adopted | None = None
    signatures: dict[str, SignatureResult] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_skipped(self) -> bool:
        """Whether the model's files are not here."""
        return self.fault.startswith(SKIPPED)

    @property
    def is_exact(self) -> bool:
        """Whether the model was adopted and every request to it was answered as TensorFlow does."""
        tallies = [tally for found in self.signatures.values() for tally in found.adopted.values()]
        return not self.fault and bool(tallies) and all(tally.equal == tally.asked for tally in tallies)

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON object."""
        adopted = self.adopted
        return {
            "name": self.name,
            "fault": self.fault,
            "adopted": bool(adopted and adopted.version),
            "not_adopted_because": adopted.reason if adopted else "",
            "adopt_seconds": adopted.seconds if adopted else 0.0,
            "runs": adopted.runs if adopted else {},
            "signatures": {name: found.as_json() for name, found in self.signatures.items()},
            "seconds": self.seconds,
        }


def run(model: ForeignModel, original: Path, out: Path, plan: Plan) -> ModelResult:
    """Returns what became of a model that has been built; never raises because of it.

    Args:
      original: base path of the SavedModel as its framework wrote it; the version is 1.
      out: base path for the adopted version.
    """
    result = ModelResult(model.name)
    started_s = time.monotonic()
    try:
        result.adopted = adopt(original / "1", out)
        _ask_servers(model, original, out, plan, result)
    except Exception as error:
        result.fault = f"{type(error).__name__}: {error}"
    result.seconds = time.monotonic() - started_s
    return result


def _ask_servers(model: ForeignModel, original: Path, out: Path, plan: Plan, result: ModelResult) -> None:
    assert result.adopted is not None
    # Both start at once; the original is served whether or not the model was adopted.
    bases = [*([out] if result.adopted.version else []), original]
    with ExitStack() as stack:
        servers = [stack.enter_context(_server(base)) for base in bases]
        reference = Reference(original / "1")
        stack.callback(reference.close)
        sides = [stack.enter_context(_wires(server.ready())) for server in servers]
        if not reference.signatures:
            raise ValueError("the SavedModel has no signature for Predict")
        draws = {
            name: RandomRequests(specs, model.inputs, plan.scale, zlib.crc32(f"{model.name}/{name}".encode()))
            for name, specs in reference.signatures.items()
        }
        for name in draws:
            found = result.signatures[name] = SignatureResult()
            tallies = [*([found.adopted] if result.adopted.version else []), found.original]
            _compare(reference, name, draws[name].draw(plan.requests), sides, tallies)
        if plan.seconds and result.adopted.version:
            for name, found in result.signatures.items():
                drawn = draws[name].of_rows(NUM_ROWS, _MOST_DRAWN)
                requests = [r for r in drawn if not isinstance(expect(reference, name, r), Refused)][:NUM_REQUESTS]
                for wire in ("grpc", "rest"):
                    found.speed[wire] = measure(
                        servers,
                        MODEL,
                        name,
                        requests,
                        is_grpc=wire == "grpc",
                        seconds=plan.seconds,
                        rounds=plan.rounds,
                    )


def _compare(
    reference: Reference,
    signature: str,
    requests: Iterator[Tensors],
    sides: Sequence[tuple[GrpcWire, RestWire]],
    tallies: Sequence[dict[str, Tally]],
) -> None:
    for number, tensors in enumerate(requests):
        expected = expect(reference, signature, tensors)
        is_rest = number % _REST_SHARE == 0 and has_json_form(tensors)
        for (grpc_wire, rest_wire), tally in zip(sides, tallies, strict=True):
            ask_grpc(tally, grpc_wire, MODEL, signature, tensors, expected)
            if is_rest:
                ask_rest(tally, rest_wire, MODEL, signature, tensors, expected)


def expect(reference: Reference, signature: str, tensors: Tensors) -> Tensors | Refused:
    """Returns TensorFlow's answer, or its refusal."""
    try:
        return reference.predict(signature, tensors)
    except Refused as refusal:
        return refusal


def ask_grpc(
    tallies: dict[str, Tally], wire: GrpcWire, model: str, signature: str, tensors: Tensors, expected: Tensors | Refused
) -> None:
    """Asks over gRPC and counts under "grpc"."""
    compare(tallies.setdefault("grpc", Tally()), expected, lambda: wire.predict(model, signature, tensors))


def ask_rest(
    tallies: dict[str, Tally], wire: RestWire, model: str, signature: str, tensors: Tensors, expected: Tensors | Refused
) -> None:
    """Asks over REST and counts under "rest"."""

    def ask() -> Tensors:
        outputs = wire.predict(model, signature, tensors)
        return {} if isinstance(expected, Refused) else from_json(outputs, expected)

    compare(tallies.setdefault("rest", Tally()), expected, ask)


def _server(base: Path) -> LiveServer:
    return LiveServer(f"--model_name={MODEL}", f"--model_base_path={base}", "--file_system_poll_wait_seconds=0")


@contextmanager
def _wires(server: LiveServer) -> Iterator[tuple[GrpcWire, RestWire]]:
    wires = GrpcWire(server.grpc), RestWire(server.http)
    try:
        yield wires
    finally:
        for wire in wires:
            wire.close()
