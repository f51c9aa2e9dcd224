"""Builds foreign models, adopts them, serves original and adopted versions, and compares their answers."""

from __future__ import annotations

import json
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.foreign.children import Adopted, adopt_each, build
from loadtest.foreign.comparing import Refused, Tally, compare
from loadtest.foreign.kinds import Kind, RandomRequests, Tensors, judged
from loadtest.foreign.models import GATHERED, SKIPPED, ForeignModel
from loadtest.foreign.reference import AddedLookup, Reference, added_lookups
from loadtest.foreign.wires import GrpcWire, RestWire, from_json, has_json_form
from loadtest.live_server import LiveServer

# One of this many requests to a registered model that are sent over gRPC is also sent over REST; of a random model,
# each request is.
_REST_SHARE = 10
# One of this many random models is adopted with its timing, which decides whether its lookups are cut out.
_TIMED_SHARE = 5
# Number of valid requests of which TensorFlow must answer half, and the number of their rows.
_NUM_VALID, _NUM_ROWS = 20, 32


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of a run over foreign models.

    requests: number of gRPC requests to each signature.
    together: number of models in one pair of servers.
    times_adoption: whether adopt times both forms of a graph; otherwise it cuts all described lookups out.
    """

    requests: int = 500
    together: int = 10
    times_adoption: bool = True


@dataclass(slots=True)
class SignatureResult:
    """The results of one signature, by wire: both versions' answers compared with TensorFlow's."""

    adopted: dict[str, Tally] = field(default_factory=dict)
    original: dict[str, Tally] = field(default_factory=dict)


@dataclass(slots=True)
class ModelResult:
    """The results of one model.

    fault: why results are missing; "" if all tests of the model ran."""

    name: str
    fault: str = ""
    adopted: Adopted | None = None
    signatures: dict[str, SignatureResult] = field(default_factory=dict)
    seconds: float = 0.0
    words: str = ""
    not_compared: list[str] = field(default_factory=list)

    @property
    def is_skipped(self) -> bool:
        """Whether the model was skipped because its files are not on this machine."""
        return self.fault.startswith(SKIPPED)

    @property
    def is_exact(self) -> bool:
        """Whether the model was adopted, and every answer of the adopted version equals TensorFlow's to the bit."""
        tallies = [tally for found in self.signatures.values() for tally in found.adopted.values()]
        return (
            not (self.fault or self.not_compared)
            and bool(tallies)
            and all(tally.equal == tally.asked for tally in tallies)
        )


def run(models: Sequence[ForeignModel], folder: Path, plan: Plan) -> Iterator[ModelResult]:
    """Tests foreign models in groups, and yields each model's results; if a model fails, its result has the reason.

    Args:
      folder: for original/<name>/1, adopted/<name>/1 and the servers' model lists.
    """
    originals, adopted_to = folder / "original", folder / "adopted"
    failures = build(models, originals)
    words = {model.name: model.words for model in models}
    yield from (ModelResult(name, fault=reason, words=words[name]) for name, reason in failures.items())
    waiting = [model for model in models if model.name not in failures]
    adopted = adopt_each(
        [model.name for model in waiting],
        originals,
        adopted_to,
        cuts_all=lambda name: (
            not plan.times_adoption or bool(words[name]) and zlib.crc32(name.encode()) % _TIMED_SHARE != 0
        ),
    )
    refused = [model for model in waiting if _is_refused(model, adopted)]
    yield from (ModelResult(model.name, adopted=adopted[model.name], words=model.words) for model in refused)
    waiting = [model for model in waiting if not _is_refused(model, adopted)]
    while waiting:
        group = waiting[: plan.together]
        # Two servers run side by side: one has the adopted versions of these models, the other the original versions of
        # those that are no random models. Without an adopted version, only the second server runs.
        adopted_bases = {model.name: adopted_to / model.name for model in group if adopted[model.name].version}
        bases = {model.name: originals / model.name for model in group if not model.words}
        with ExitStack() as stack:
            servers = {
                side: stack.enter_context(serve(paths, folder / f"{side}.conf"))
                for side, paths in (("adopted", adopted_bases), ("original", bases))
                if paths
            }
            for model in group:
                waiting.remove(model)
                result = ModelResult(model.name, adopted=adopted[model.name], words=model.words)
                having = {"adopted": adopted_bases, "original": bases}
                sides = {side: server for side, server in servers.items() if model.name in having[side]}
                yield _run_one(model, originals / model.name, adopted_to / model.name / "1", sides, plan, result)
                if not all(server.is_alive for server in servers.values()):
                    break


def _is_refused(model: ForeignModel, adopted: Mapping[str, Adopted]) -> bool:
    # The original of a random model is not served, so nothing is left to compare.
    return bool(model.words) and not adopted[model.name].version


def _run_one(
    model: ForeignModel,
    original: Path,
    adopted: Path,
    servers: Mapping[str, LiveServer],
    plan: Plan,
    result: ModelResult,
) -> ModelResult:
    started_s = time.monotonic()
    try:
        _ask_servers(model, original, adopted, servers, plan, result)
    except Exception as error:
        result.fault = f"{type(error).__name__}: {error}"
    if dead := [server for server in servers.values() if not server.is_alive]:
        result.fault = f"a server ended: {[*dead[0].faults][-1:]}; {result.fault}"
    result.seconds = time.monotonic() - started_s
    return result


def _ask_servers(
    model: ForeignModel,
    original: Path,
    adopted: Path,
    servers: Mapping[str, LiveServer],
    plan: Plan,
    result: ModelResult,
) -> None:
    with ExitStack() as stack:
        reference = stack.enter_context(closing(Reference(original / "1")))
        for server in servers.values():
            wait_for(server, model.name)
        wires = {side: stack.enter_context(_wires(server)) for side, server in servers.items()}
        if not reference.signatures:
            raise ValueError("the SavedModel has no signature for Predict")
        gathered = original / GATHERED
        # A reference for the rows of each feature.
        apart = stack.enter_context(closing(Reference(gathered))) if gathered.exists() else reference
        kinds = judged_kinds(model, apart)
        rest_share = 1 if model.words else _REST_SHARE
        for name, specs in reference.signatures.items():
            draws = RandomRequests(specs, kinds, zlib.crc32(f"{model.name}/{name}".encode()))
            found = result.signatures[name] = SignatureResult()
            asked = Asked(model.name, name, draws, lambda tensors, name=name: reference.predict(name, tensors))
            for tensors, expected, is_rest in asked.requests(plan.requests, rest_share):
                for side, pair in wires.items():
                    asked.compare(getattr(found, side), pair, tensors, expected, is_rest=is_rest)
            valid = [expect(reference, name, tensors) for tensors in draws.of_rows(_NUM_ROWS, _NUM_VALID)]
            refusals = [answer for answer in valid if isinstance(answer, Refused)]
            # If TensorFlow refused most valid requests, nothing would have been compared. It may refuse a few:
            # segment_mean returns fewer rows if the last ones are empty.
            if len(refusals) > _NUM_VALID // 2:
                raise ValueError(f"TensorFlow refuses {len(refusals)} of {_NUM_VALID} valid requests: {refusals[:1]}")
        if "adopted" in wires:
            # Of the other models, nothing answers the rows of a feature by themselves.
            for one in added_lookups(adopted, apart, reference.signatures) if apart is not reference else ():
                if isinstance(one, str):
                    result.not_compared.append(one)
                else:
                    _ask_added(model, one, kinds, wires["adopted"], plan, result)


def _ask_added(
    model: ForeignModel,
    added: AddedLookup,
    kinds: Mapping[str, Kind],
    wires: tuple[GrpcWire, RestWire],
    plan: Plan,
    result: ModelResult,
) -> None:
    seed = zlib.crc32(f"{model.name}/{added.name}".encode())
    found = result.signatures[added.name] = SignatureResult()
    requests = RandomRequests(added.specs, kinds, seed)
    asked = Asked(model.name, added.name, requests, added.predict, added.request)
    for tensors, expected, is_rest in asked.requests(plan.requests, 1 if model.words else _REST_SHARE):
        asked.compare(found.adopted, wires, tensors, expected, is_rest=is_rest)


def judged_kinds(model: ForeignModel, reference: Reference) -> Mapping[str, Kind]:
    """Returns the model's kinds of inputs with listed keys sorted into those that TensorFlow answers and refuses."""
    return judged(
        model.inputs,
        reference.signatures,
        lambda signature, tensors: not isinstance(expect(reference, signature, tensors), Refused),
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """A signature that a server is asked, and the requests to it.

    expected: computes TensorFlow's answer to a request, or raises Refused. request: makes the inputs that are sent of
    the inputs that TensorFlow takes.
    """

    model: str
    signature: str
    draws: RandomRequests
    expected: Callable[[Tensors], Tensors]
    request: Callable[[Tensors], Tensors] = lambda tensors: tensors

    def requests(self, count: int, rest_share: int) -> Iterator[tuple[Tensors, Tensors | Refused, bool]]:
        for number, tensors in enumerate(self.draws.draw(count)):
            try:
                expected: Tensors | Refused = self.expected(tensors)
            except Refused as refusal:
                expected = refusal
            yield tensors, expected, number % rest_share == 0 and has_json_form(tensors)

    def compare(
        self,
        tallies: dict[str, Tally],
        wires: tuple[GrpcWire, RestWire],
        tensors: Tensors,
        expected: Tensors | Refused,
        *,
        is_rest: bool,
    ) -> None:
        sent, (grpc_wire, rest_wire) = self.request(tensors), wires

        def describe(row: int) -> str:
            return self.draws.row(tensors, row)

        def ask_rest() -> Tensors:
            outputs = rest_wire.predict(self.model, self.signature, sent)
            return {} if isinstance(expected, Refused) else from_json(outputs, expected)

        def ask_grpc() -> Tensors:
            return grpc_wire.predict(self.model, self.signature, sent)

        compare(tallies.setdefault("grpc", Tally()), expected, ask_grpc, describe)
        if is_rest:
            compare(tallies.setdefault("rest", Tally()), expected, ask_rest, describe)


def expect(reference: Reference, signature: str, tensors: Tensors) -> Tensors | Refused:
    """Returns TensorFlow's answer to a request; if TensorFlow refuses the request, the exception Refused."""
    try:
        return reference.predict(signature, tensors)
    except Refused as refusal:
        return refusal


@contextmanager
def _wires(server: LiveServer) -> Iterator[tuple[GrpcWire, RestWire]]:
    wires = GrpcWire(server.grpc), RestWire(server.http)
    try:
        yield wires
    finally:
        for wire in wires:
            wire.close()


_PATIENCE_S = 180


class NotServed(Exception):
    """Raised if a model is not AVAILABLE, or if its server has ended."""


def serve(bases: Mapping[str, Path], config: Path) -> LiveServer:
    """Starts a server of models, given by name and base path; config: path at which the list of models is written."""
    lines = [
        f'config {{ name: "{name}" base_path: "{base}" model_platform: "tensorflow" }}' for name, base in bases.items()
    ]
    config.write_text("model_config_list {\n" + "\n".join(lines) + "\n}\n")
    # The server must not retry a failed load: it would wait a minute before it loads the broken model again.
    once = ("--file_system_poll_wait_seconds=0", "--max_num_load_retries=0")
    return LiveServer(f"--model_config_file={config}", *once)


def wait_for(server: LiveServer, model: str) -> None:
    """Waits until the server answers for a model; raises NotServed with the server's reason if it can not."""
    end_s = time.monotonic() + _PATIENCE_S
    while server.is_alive and time.monotonic() < end_s:
        with urllib.request.urlopen(f"{server.http}/v1/models/{model}", timeout=_PATIENCE_S) as response:
            states = json.load(response)["model_version_status"]
        if any(state["state"] == "AVAILABLE" for state in states):
            return
        ended = [state for state in states if state["state"] == "END"]
        if ended:
            raise NotServed(f"not loaded: {ended[0]['status']['error_message']}")
        time.sleep(0.05)
    raise NotServed(f"not loaded within {_PATIENCE_S} s" if server.is_alive else "the server has ended")
