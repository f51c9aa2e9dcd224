"""Builds foreign models, adopts them, serves original and adopted versions, compares their answers, and times them."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.foreign.adopting import Adopted, adopt_each
from loadtest.foreign.building import build
from loadtest.foreign.comparing import Refused, Tally, compare
from loadtest.foreign.kinds import Tensors
from loadtest.foreign.models import SKIPPED, ForeignModel
from loadtest.foreign.random_requests import RandomRequests
from loadtest.foreign.reference import Reference
from loadtest.foreign.serving import serve, wait_for
from loadtest.foreign.speed import NUM_REQUESTS, NUM_ROWS, Speed, measure
from loadtest.foreign.wires import GrpcWire, RestWire, from_json, has_json_form
from loadtest.live_server import LiveServer

# One of this many requests that are sent over gRPC is also sent over REST.
_REST_SHARE = 10
# Largest number of random requests that are drawn to find requests that TensorFlow answers; only answered requests are
# timed.
_MOST_DRAWN = 64
_NUM_VALID = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of a run over foreign models: requests, rounds and seconds for each model.

    requests: number of gRPC requests to each signature.
    seconds: duration of each turn of the timing; 0: no timing.
    rounds: number of turns of each server.
    scale: factor on the rows of all tables.
    together: number of models in one pair of servers.
    """

    requests: int = 500
    seconds: float = 1.0
    rounds: int = 3
    scale: int = 1
    together: int = 10


@dataclass(slots=True)
class SignatureResult:
    """The results of one signature, by wire: both versions' answers compared with TensorFlow's, and their speeds."""

    adopted: dict[str, Tally] = field(default_factory=dict)
    original: dict[str, Tally] = field(default_factory=dict)
    speed: dict[str, Speed] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Returns the answers and speeds of one signature as a JSON object."""
        kinds = {"adopted": self.adopted, "original": self.original, "speed": self.speed}
        return {key: {wire: found.as_json() for wire, found in wires.items()} for key, wires in kinds.items()}


@dataclass(slots=True)
class ModelResult:
    """The results of one model. fault: why results are missing; "" if all tests of the model ran."""

    name: str
    fault: str = ""
    adopted: Adopted | None = None
    signatures: dict[str, SignatureResult] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_skipped(self) -> bool:
        """Whether the model was skipped because its files are not on this machine."""
        return self.fault.startswith(SKIPPED)

    @property
    def is_exact(self) -> bool:
        """Whether the model was adopted, and every answer of the adopted version equals TensorFlow's to the bit."""
        tallies = [tally for found in self.signatures.values() for tally in found.adopted.values()]
        return not self.fault and bool(tallies) and all(tally.equal == tally.asked for tally in tallies)

    def as_json(self) -> dict[str, Any]:
        """Returns the outcome of a model's adoption, and the results of its signatures, as a JSON object."""
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


def run(models: Sequence[ForeignModel], folder: Path, plan: Plan) -> Iterator[ModelResult]:
    """Tests foreign models in groups, and yields each model's results; if a model fails, its result has the reason.

    Args:
      folder: for original/<name>/1, adopted/<name>/1 and the servers' model lists.
    """
    originals, adopted_to = folder / "original", folder / "adopted"
    failures = build(models, originals, scale=plan.scale)
    yield from (ModelResult(name, fault=reason) for name, reason in failures.items())
    waiting = [model for model in models if model.name not in failures]
    adopted = adopt_each([model.name for model in waiting], originals, adopted_to)
    while waiting:
        group = waiting[: plan.together]
        # Two servers run side by side: one has the adopted versions of these models, the other their original versions.
        # Without an adopted version, only the second server runs.
        bases = {model.name: originals / model.name for model in group}
        adopted_bases = {name: adopted_to / name for name in bases if adopted[name].version}
        with ExitStack() as stack:
            servers = []
            if adopted_bases:
                servers.append(stack.enter_context(serve(adopted_bases, folder / "adopted.conf")))
            servers.append(stack.enter_context(serve(bases, folder / "original.conf")))
            for model in group:
                waiting.remove(model)
                result = ModelResult(model.name, adopted=adopted[model.name])
                is_adopted = model.name in adopted_bases
                # The original's answers are compared too, because adopt must not change the original model.
                yield _run_one(model, bases[model.name], servers if is_adopted else servers[-1:], plan, result)
                if not all(server.is_alive for server in servers):
                    break


def _run_one(
    model: ForeignModel, original: Path, servers: Sequence[LiveServer], plan: Plan, result: ModelResult
) -> ModelResult:
    started_s = time.monotonic()
    try:
        _ask_servers(model, original, servers, plan, result)
    except Exception as error:
        result.fault = f"{type(error).__name__}: {error}"
    if dead := [server for server in servers if not server.is_alive]:
        result.fault = f"a server ended: {[*dead[0].faults][-1:]}; {result.fault}"
    result.seconds = time.monotonic() - started_s
    return result


def _ask_servers(
    model: ForeignModel, original: Path, servers: Sequence[LiveServer], plan: Plan, result: ModelResult
) -> None:
    with ExitStack() as stack:
        reference = stack.enter_context(closing(Reference(original / "1")))
        for server in servers:
            wait_for(server, model.name)
        sides = [stack.enter_context(_wires(server)) for server in servers]
        if not reference.signatures:
            raise ValueError("the SavedModel has no signature for Predict")
        draws = {
            name: RandomRequests(specs, model.inputs, plan.scale, zlib.crc32(f"{model.name}/{name}".encode()))
            for name, specs in reference.signatures.items()
        }
        for name in draws:
            found = result.signatures[name] = SignatureResult()
            tallies = [found.adopted, found.original][-len(servers) :]
            _compare(reference, model.name, name, draws[name].draw(plan.requests), sides, tallies)
            valid = [expect(reference, name, tensors) for tensors in draws[name].of_rows(NUM_ROWS, _NUM_VALID)]
            refusals = [answer for answer in valid if isinstance(answer, Refused)]
            # If TensorFlow refused most valid requests, nothing would have been compared. It may refuse a few:
            # segment_mean returns fewer rows if the last ones are empty.
            if len(refusals) > _NUM_VALID // 2:
                raise ValueError(f"TensorFlow refuses {len(refusals)} of {_NUM_VALID} valid requests: {refusals[:1]}")
        if plan.seconds and len(servers) > 1:
            for name, found in result.signatures.items():
                drawn = draws[name].of_rows(NUM_ROWS, _MOST_DRAWN)
                requests = [r for r in drawn if not isinstance(expect(reference, name, r), Refused)][:NUM_REQUESTS]
                for wire in ("grpc", "rest"):
                    found.speed[wire] = measure(
                        servers,
                        model.name,
                        name,
                        requests,
                        is_grpc=wire == "grpc",
                        seconds=plan.seconds,
                        rounds=plan.rounds,
                    )


def _compare(
    reference: Reference,
    model: str,
    signature: str,
    requests: Iterator[Tensors],
    sides: Sequence[tuple[GrpcWire, RestWire]],
    tallies: Sequence[dict[str, Tally]],
) -> None:
    for number, tensors in enumerate(requests):
        expected = expect(reference, signature, tensors)
        is_rest = number % _REST_SHARE == 0 and has_json_form(tensors)
        for (grpc_wire, rest_wire), tally in zip(sides, tallies, strict=True):
            ask_grpc(tally, grpc_wire, model, signature, tensors, expected)
            if is_rest:
                ask_rest(tally, rest_wire, model, signature, tensors, expected)


def expect(reference: Reference, signature: str, tensors: Tensors) -> Tensors | Refused:
    """Returns TensorFlow's answer to a request; if TensorFlow refuses the request, the exception Refused."""
    try:
        return reference.predict(signature, tensors)
    except Refused as refusal:
        return refusal


def ask_grpc(
    tallies: dict[str, Tally], wire: GrpcWire, model: str, signature: str, tensors: Tensors, expected: Tensors | Refused
) -> None:
    """Sends a request over gRPC, and adds the comparison of its answer to the tally "grpc"."""
    compare(tallies.setdefault("grpc", Tally()), expected, lambda: wire.predict(model, signature, tensors))


def ask_rest(
    tallies: dict[str, Tally], wire: RestWire, model: str, signature: str, tensors: Tensors, expected: Tensors | Refused
) -> None:
    """Sends a request over REST, and adds the comparison of its answer to the tally "rest"."""

    def ask() -> Tensors:
        outputs = wire.predict(model, signature, tensors)
        return {} if isinstance(expected, Refused) else from_json(outputs, expected)

    compare(tallies.setdefault("rest", Tally()), expected, ask)


@contextmanager
def _wires(server: LiveServer) -> Iterator[tuple[GrpcWire, RestWire]]:
    wires = GrpcWire(server.grpc), RestWire(server.http)
    try:
        yield wires
    finally:
        for wire in wires:
            wire.close()
