"""Builds foreign models, adopts them, serves original and adopted versions, and compares their answers."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from loadtest.foreign.children import Adopted, adopt_each, build
from loadtest.foreign.comparing import Refused, Tally, compare
from loadtest.foreign.kinds import RandomRequests, Tensors, judged
from loadtest.foreign.models import GATHERED, SKIPPED, ForeignModel
from loadtest.foreign.reference import Reference, added_lookups
from loadtest.foreign.wires import GrpcWire, RestWire, has_json_form
from loadtest.live_server import LiveServer, exchange

# One of this many requests to a registered model that are sent over gRPC is also sent over REST; of a random model,
# each request is.
_REST_SHARE = 10
# One of this many random models is adopted with its timing, which decides whether its lookups are cut out.
_TIMED_SHARE = 5
# Number of valid requests of which TensorFlow must answer half, and the number of their rows.
_NUM_VALID, _NUM_ROWS = 20, 32
_PATIENCE_S = 180

Wires = tuple[GrpcWire, RestWire]


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
class ModelResult:
    """The results of one model.

    fault: why results are missing; "" if all tests of the model ran.
    tallies: "SIGNATURE SIDE WIRE" -> how many answers equal TensorFlow's; the side is adopted or original.
    """

    name: str
    fault: str = ""
    adopted: Adopted | None = None
    tallies: dict[str, Tally] = field(default_factory=dict)
    words: str = ""
    not_compared: list[str] = field(default_factory=list)

    def of(self, side: str) -> list[Tally]:
        """Returns the tallies of a side."""
        return [tally for key, tally in self.tallies.items() if key.split(" ")[-2] == side]

    @property
    def is_skipped(self) -> bool:
        """Whether the model was skipped because its files are not on this machine."""
        return self.fault.startswith(SKIPPED)

    @property
    def is_exact(self) -> bool:
        """Whether the model was adopted, and every answer of the adopted version equals TensorFlow's to the bit."""
        tallies = self.of("adopted")
        is_whole = bool(tallies) and not (self.fault or self.not_compared)
        return is_whole and all(tally.equal == tally.asked for tally in tallies)


def run(models: Sequence[ForeignModel], folder: Path, plan: Plan) -> Iterator[ModelResult]:
    """Tests foreign models in groups, and yields each model's results; if a model fails, its result has the reason.

    Args:
      folder: for original/<name>/1, adopted/<name>/1 and the servers' model lists.
    """

    def cuts_all(name: str) -> bool:
        return not plan.times_adoption or bool(words[name]) and zlib.crc32(name.encode()) % _TIMED_SHARE != 0

    words = {model.name: model.words for model in models}
    failures = build(models, folder / "original")
    names = [model.name for model in models if model.name not in failures]
    adopted = adopt_each(names, folder / "original", folder / "adopted", cuts_all=cuts_all)
    waiting = []
    for model in models:
        if model.name in failures:
            yield ModelResult(model.name, failures[model.name], words=model.words)
        elif model.words and not adopted[model.name].version:
            # The original of a random model is not served, so nothing is left to compare.
            yield ModelResult(model.name, adopted=adopted[model.name], words=model.words)
        else:
            waiting.append(model)
    while waiting:
        group = waiting[: plan.together]
        # Two servers run side by side: one has the adopted versions of these models, the other the original versions of
        # those that are no random models. Without an adopted version, only the second server runs.
        having = {
            "adopted": [model.name for model in group if adopted[model.name].version],
            "original": [model.name for model in group if not model.words],
        }
        with ExitStack() as stack:
            servers = {side: stack.enter_context(_serve(on, folder / side)) for side, on in having.items() if on}
            for model in group:
                waiting.remove(model)
                result = ModelResult(model.name, adopted=adopted[model.name], words=model.words)
                sides = {side: server for side, server in servers.items() if model.name in having[side]}
                try:
                    _ask_servers(model, folder, sides, plan.requests, result)
                except Exception as error:
                    result.fault = f"{type(error).__name__}: {error}"
                dead = [server for server in servers.values() if not server.is_alive]
                if dead:
                    result.fault = f"a server ended: {[*dead[0].faults][-1:]}; {result.fault}"
                yield result
                if dead:
                    break


def _ask_servers(
    model: ForeignModel, folder: Path, servers: Mapping[str, LiveServer], count: int, result: ModelResult
) -> None:
    original = folder / "original" / model.name
    with ExitStack() as stack:
        reference = stack.enter_context(closing(Reference(original / "1")))
        wires: dict[str, Wires] = {}
        for side, server in servers.items():
            _wait_for(server, model.name)
            over_grpc = stack.enter_context(closing(GrpcWire(server.grpc)))
            wires[side] = over_grpc, stack.enter_context(closing(RestWire(server.http)))
        if not reference.signatures:
            raise ValueError("the SavedModel has no signature for Predict")
        gathered = original / GATHERED
        # A reference for the rows of each feature.
        apart = stack.enter_context(closing(Reference(gathered))) if gathered.exists() else reference
        kinds = judged(
            model.inputs,
            apart.signatures,
            lambda name, tensors: not isinstance(_expected(partial(apart.predict, name), tensors), Refused),
        )
        for name, specs in reference.signatures.items():
            draws = RandomRequests(specs, kinds, zlib.crc32(f"{model.name}/{name}".encode()))
            predict = partial(reference.predict, name)
            _ask(model, name, draws, predict, wires, count, result)
            valid = [_expected(predict, tensors) for tensors in draws.of_rows(_NUM_ROWS, _NUM_VALID)]
            refusals = [answer for answer in valid if isinstance(answer, Refused)]
            # If TensorFlow refused most valid requests, nothing would have been compared. It may refuse a few:
            # segment_mean returns fewer rows if the last ones are empty.
            if len(refusals) > _NUM_VALID // 2:
                raise ValueError(f"TensorFlow refuses {len(refusals)} of {_NUM_VALID} valid requests: {refusals[:1]}")
        if "adopted" not in wires or apart is reference:
            # Of the other models, nothing answers the rows of a feature by themselves.
            return
        adopted = {"adopted": wires["adopted"]}
        for one in added_lookups(folder / "adopted" / model.name / "1", apart, reference.signatures):
            if isinstance(one, str):
                result.not_compared.append(one)
            else:
                draws = RandomRequests(one.specs, kinds, zlib.crc32(f"{model.name}/{one.name}".encode()))
                _ask(model, one.name, draws, one.predict, adopted, count, result, one.request)


def _ask(
    model: ForeignModel,
    signature: str,
    draws: RandomRequests,
    predict: Callable[[Tensors], Tensors],
    wires: Mapping[str, Wires],
    count: int,
    result: ModelResult,
    request: Callable[[Tensors], Tensors] = lambda tensors: tensors,
) -> None:
    """Sends random requests for a signature, and counts the answers.

    Args:
      predict: computes TensorFlow's answer, or raises Refused. wires: by side.
      request: makes the inputs that are sent of the inputs that TensorFlow takes.
    """
    for number, tensors in enumerate(draws.draw(count)):
        expected, sent = _expected(predict, tensors), request(tensors)
        has_rest = number % (1 if model.words else _REST_SHARE) == 0 and has_json_form(tensors)
        for side, (over_grpc, over_rest) in wires.items():
            for wire, client in {"grpc": over_grpc, **({"rest": over_rest} if has_rest else {})}.items():
                tally = result.tallies.setdefault(f"{signature} {side} {wire}", Tally())
                ask = partial(client.predict, model.name, signature, sent, expected)
                compare(tally, expected, ask, partial(draws.row, tensors))


def _expected(predict: Callable[[Tensors], Tensors], tensors: Tensors) -> Tensors | Refused:
    """Returns TensorFlow's answer to a request; if TensorFlow refuses the request, the exception Refused."""
    try:
        return predict(tensors)
    except Refused as refusal:
        return refusal


def _serve(names: Sequence[str], folder: Path) -> LiveServer:
    """Starts a server of the models with these names in a folder."""
    form = 'config {{ name: "{}" base_path: "{}" model_platform: "tensorflow" }}'
    config = folder.with_suffix(".conf")
    config.write_text(f"model_config_list {{ {' '.join(form.format(name, folder / name) for name in names)} }}")
    # The server must not retry a failed load: it would wait a minute before it loads the broken model again.
    once = ("--file_system_poll_wait_seconds=0", "--max_num_load_retries=0")
    return LiveServer(f"--model_config_file={config}", *once)


class NotServed(Exception):
    """Raised if a model is not AVAILABLE, or if its server has ended."""


def _wait_for(server: LiveServer, model: str) -> None:
    """Waits until the server answers for a model; raises NotServed with the server's reason if it can not."""
    end_s = time.monotonic() + _PATIENCE_S
    while server.is_alive and time.monotonic() < end_s:
        states = json.loads(exchange(server.http, f"/v1/models/{model}")[1])["model_version_status"]
        if any(state["state"] == "AVAILABLE" for state in states):
            return
        if ended := [state for state in states if state["state"] == "END"]:
            raise NotServed(f"not loaded: {ended[0]['status']['error_message']}")
        time.sleep(0.05)
    raise NotServed(f"not loaded within {_PATIENCE_S} s" if server.is_alive else "the server has ended")
