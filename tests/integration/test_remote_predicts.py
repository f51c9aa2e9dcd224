"""The native core computes predicts over tables in a cluster: the bytes of mapped tables, whatever happens to nodes.

One server has the same version under four names: "mapped" reads its own files, and the others read a cluster, each with
another `on_unavailable`. The names have equal lengths, so that answers differ in nothing but the name.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from model_export.remote.push import push
from service.artifact.protos import message_class
from service.remote.address import StoreAddress
from tests.conformance.random_calls import Array, Call, Drawn, RandomCalls, spoil
from tests.conformance.test_data_planes import Answers
from tests.conformance.wires import PREDICT, predict_request
from tests.integration.process import PATIENCE_S, ServerProcess, until, write_models
from tests.mixed_model import COLORS, NUM_ITEMS, NUM_USERS, write_mixed_model
from tests.valkey_cluster import Cluster, needs_program

pytestmark = [pytest.mark.tf, needs_program]

_REMOTE = {"strict": "error", "gentle": "default_row", "cached": "stale"}
# Long timeouts: on a busy machine, a slow node must not look like a dead one.
_PATIENT = "?timeout_ms=60000&node_timeout_ms=30000"
_WORDS = np.array([b"", b"red", "grün".encode(), b"a word"], object)


def random_inputs(signature: str, rows: int, rng: np.random.Generator) -> dict[str, Array]:
    """Returns random valid inputs of a signature of the mixed model."""
    if signature == "colored":
        colors = np.array([color.encode() for color in COLORS], object)
        return {"color": rng.choice(colors, rows) if rng.integers(2) else rng.integers(0, NUM_ITEMS, rows)}
    inputs: dict[str, Array] = {"dense": rng.normal(size=(rows, 3)).astype(np.float32)}
    inputs |= {name: rng.integers(0, NUM_USERS, rows) for name in ("user", "friend")}
    inputs["pair"] = rng.integers(0, NUM_USERS, (rows, 2))
    for name in ("tags", "history"):
        lengths = rng.integers(0, 6, rows) * rng.integers(0, 2, rows)
        inputs[f"{name}__values"] = rng.integers(0, NUM_ITEMS, int(lengths.sum()))
        inputs[f"{name}__row_splits"] = np.concatenate([[0], np.cumsum(lengths)])
    weights = np.array([0, 0.5, -1, 2.25, 0.1], np.float32)
    inputs["tags__weights"] = rng.choice(weights, inputs["tags__values"].size)
    return inputs | ({"word": rng.choice(_WORDS, rows)} if signature == "serving_default" else {})


class RandomPredicts(RandomCalls):
    """Draws random predicts of the mixed model. has_faults: most of them hold an id without a row, or do not fit."""

    has_faults = False

    @property
    def lookups(self) -> list[str]:
        """Returns the names of the signatures, which here are predicts."""
        return ["colored", "plain", "serving_default"]

    def _drawn(self, rng: random.Random, signature: str) -> Drawn:
        inputs = random_inputs(signature, rng.choice((1, 2, 3, 17)), np.random.default_rng(rng.getrandbits(32)))
        if self.has_faults and rng.random() < 0.5:
            name = rng.choice([name for name, array in inputs.items() if array.dtype != np.float32 and array.size])
            bad = (b"no such word",) if inputs[name].dtype == object else (-1, NUM_USERS, 2**40)
            inputs[name].flat[rng.randrange(inputs[name].size)] = rng.choice(bad)
        drawn = Drawn(self._model, signature, inputs, {}, {}, [])
        for name, array in inputs.items():
            feature, _, part = name.partition("__")
            if part == "row_splits":
                continue
            cells = [cell.decode() if isinstance(cell, bytes) else cell for cell in array.tolist()]
            if part:
                cells = [cells[max(a, 0) : max(b, 0)] for a, b in pairwise(inputs[f"{feature}__row_splits"].tolist())]
            (drawn.weights if part == "weights" else drawn.nested)[feature] = cells
        if self.has_faults and rng.random() < 0.3:
            spoil(rng, drawn.arrays)
        return drawn


@dataclass(frozen=True)
class Served:
    """A running server, its cluster, and the folder of its version."""

    cluster: Cluster
    folder: Path
    server: ServerProcess

    def push(self) -> None:
        """Writes the tables into the cluster, for each model that reads them there."""
        for model in _REMOTE:
            push(self.folder, StoreAddress.parse(self.cluster.address), model=model)

    def statusz(self) -> dict[str, Any]:
        """Returns the status page's document, which the reference server writes."""
        document: dict[str, Any] = self.server.http.get("/v1/statusz").json()
        return document

    def start(self, model: str, signature: str, inputs: dict[str, Array], timeout_s: float = PATIENCE_S) -> Any:
        """Starts a Predict over gRPC; returns its call."""
        request = predict_request(model, inputs, signature)
        return self.server.channel.unary_unary(PREDICT).future(request, timeout=timeout_s)

    def predict(self, model: str, signature: str, inputs: dict[str, Array]) -> tuple[list[float], dict[str, Any]]:
        """Returns the scores, and by the name of a trailer such as x-default-rows: table -> number of rows not read."""
        call = self.start(model, signature, inputs)
        scores = scores_of(call)
        notes = {key: str(value) for key, value in call.trailing_metadata() if key.endswith("-rows")}
        return scores, {key: rows_by_table(value) for key, value in notes.items()}


def scores_of(call: Any) -> list[float]:
    """Waits for the answer of a Predict; returns the values of its output "score"."""
    answer = message_class("tensorflow.serving.PredictResponse").FromString(call.result())
    return list(answer.outputs["score"].float_val)


def rows_by_table(note: str) -> dict[str, int]:
    """Parses `user=3, item=1`."""
    return {table: int(number) for table, number in (part.split("=") for part in note.split(", "))}


def distinct_rows(inputs: dict[str, Array]) -> dict[str, int]:
    """Returns how many distinct rows the features of each table read."""
    features = {"user": ("user", "friend", "pair"), "item": ("tags__values", "history__values")}
    return {table: sum(np.unique(inputs[name]).size for name in names) for table, names in features.items()}


@pytest.fixture(scope="module")
def served(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Starts a cluster of three primaries, and a server of the model under all its names."""
    folder = tmp_path_factory.mktemp("predicts")
    version = write_mixed_model(tf, folder / "mixed" / "1")
    listed = write_models(folder, dict.fromkeys(("mapped", *_REMOTE), version.parent))
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder / "nodes", 3))
        tables = [
            f"{model}/{table}={cluster.address}{_PATIENT}&on_unavailable={policy}"
            for model, policy in _REMOTE.items()
            for table in ("user", "item")
        ]
        # The tables are pushed before the server starts, because the server would retry a version without its tables
        # only after a while.
        for model in _REMOTE:
            push(version, StoreAddress.parse(cluster.address), model=model)
        server = ServerProcess(
            model_config_file=listed,
            remote_tables=";".join(tables),
            remote_cache_bytes=1 << 20,
            enable_batching="true",
            # Requests wait long for a frozen node, and the queue must not refuse other requests because of that.
            max_queue_ms=60_000,
            admin_port="auto",
        )
        yield Served(cluster, version, stack.enter_context(server).ready())


@pytest.mark.parametrize("has_faults", [False, True])
def test_answers_are_those_of_mapped_tables_on_every_wire(
    served: Served, has_faults: bool, request: pytest.FixtureRequest
) -> None:
    calls, rng = RandomPredicts("mapped", served.folder), random.Random(f"predicts {has_faults}")
    calls.has_faults = has_faults
    answered: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    before = served.statusz()["data_plane"]["forwarded"]
    with closing(Answers(served.server)) as answers:
        for _ in range(request.config.getoption("--parity-requests") // 12):
            for call in calls.draw(rng):
                if call.wire == "json lookup":
                    continue
                expected, found = answers.to(call), answers.to(of_model(call, "strict"))
                assert (found[0], found[1].replace(b"strict", b"mapped")) == expected, (call, found, expected)
                is_answer = expected[0] == "OK" or expected[0][0] == 200
                (answered if is_answer else refused)[call.wire] += 1
    assert len(answered) == 7
    if has_faults:
        assert refused.keys() == answered.keys()
        return
    assert not refused
    after = served.statusz()["data_plane"]["forwarded"]
    # The core also forwarded the request for the status page.
    assert (after["grpc"], after["http"]) == (before["grpc"], before["http"] + 1)
    records = served.server.records
    assert not [one for one in records if one["message"] == "the native core does not run signatures"]
    assert not [record for record in records if record["message"] == "signature is not warmed up"]


def of_model(call: Call, model: str) -> Call:
    """Returns a call of "mapped" as a call of another model."""
    body = call.body.replace(b"mapped", model.encode())
    return replace(call, path=call.path.replace("mapped", model), body=body)


def test_requests_that_share_a_run_get_their_own_rows(served: Served) -> None:
    rng = np.random.default_rng(4)
    inputs = [random_inputs("plain", int(rng.integers(1, 5)), rng) for _ in range(60)]
    wanted = [served.predict("mapped", "plain", one)[0] for one in inputs]
    for found, scores in zip([served.start("strict", "plain", one) for one in inputs], wanted, strict=True):
        # TensorFlow may add in another order if it runs several requests together.
        np.testing.assert_allclose(scores_of(found), scores, rtol=1e-4, atol=1e-5)


def test_requests_that_wait_for_a_node_hold_no_thread_that_others_need(served: Served) -> None:
    rng = np.random.default_rng(5)
    # These are more requests than the pool for large work has threads.
    inputs = [random_inputs("serving_default", 40, rng) for _ in range(40)]
    wanted = [served.predict("mapped", "serving_default", one)[0] for one in inputs]
    served.cluster.nodes[1].freeze()
    try:
        waiting = [served.start("strict", "serving_default", one) for one in inputs]
        late = served.start("strict", "serving_default", inputs[0], timeout_s=1)
        assert served.predict("mapped", "serving_default", inputs[0])[0] == wanted[0]
        with pytest.raises(grpc.RpcError) as told:
            late.result()
        assert told.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert not any(call.done() for call in waiting)
    finally:
        served.cluster.nodes[1].thaw()
    assert [scores_of(call) for call in waiting] == wanted


def test_upserts_reach_predictions(served: Served) -> None:
    inputs = random_inputs("plain", 3, np.random.default_rng(6)) | {"user": np.array([77, 78, 77])}
    others = inputs | {"user": np.array([1234, 78, 1234])}
    url = "/v1/models/mapped/tables/user:rows"
    own, other = served.server.http.post(url, json={"ids": [77, 1234]}).json()["rows"]
    with httpx.Client(base_url=f"http://127.0.0.1:{served.server.admin_port}", timeout=PATIENCE_S) as admin:
        for row, wanted in ((other, others), (own, inputs)):
            scores = served.predict("mapped", "plain", wanted)[0]
            # The request fills the server's cache with the old row 77, so the upsert below must replace it there.
            assert served.predict("strict", "plain", inputs)[0] != scores
            body = {"ids": [77], "rows": [row]}
            told = admin.post("/v1/models/strict/tables/user:upsert", json=body)
            assert told.status_code == 200, told.text
            until(lambda scores=scores: served.predict("strict", "plain", inputs)[0] == scores)


def test_on_unavailable_says_what_is_predicted_without_nodes(served: Served) -> None:
    inputs = random_inputs("plain", 9, np.random.default_rng(7))
    defaults = {name: array if name_is_no_id(name) else np.zeros_like(array) for name, array in inputs.items()}
    wanted, of_defaults = (served.predict("mapped", "plain", one)[0] for one in (inputs, defaults))
    assert wanted != of_defaults
    for model in _REMOTE:
        until(lambda model=model: served.predict(model, "plain", inputs) == (wanted, {}))
        # The cache keeps a row that is read again, and takes none that was read while its cluster told of changes.
        for _ in range(3):
            served.predict(model, "plain", inputs)
    rows = distinct_rows(inputs)
    before = served.statusz()["data_plane"]["forwarded"]["grpc"]
    for node in served.cluster.nodes:
        node.kill()
    try:
        # The server still has the rows in its cache, and may use them for two seconds after it lost the cluster.
        until(lambda: refusal(served, "strict", inputs))
        text = r'Rows of table "(user|item)" can not be read now: .*'
        assert re.fullmatch(text, refusal(served, "strict", inputs))
        until(lambda: served.predict("gentle", "plain", inputs)[1] == {"x-default-rows": rows})
        assert served.predict("gentle", "plain", inputs)[0] == of_defaults
        until(lambda: served.predict("cached", "plain", inputs)[1] == {"x-stale-rows": rows})
        assert served.predict("cached", "plain", inputs)[0] == wanted
        assert served.statusz()["data_plane"]["forwarded"]["grpc"] == before
        columns = {name: array.tolist() for name, array in inputs.items()}
        body = {"inputs": columns, "signature_name": "plain"}
        answers = {model: served.server.http.post(f"/v1/models/{model}:predict", json=body) for model in _REMOTE}
        assert {model: answer.status_code for model, answer in answers.items()} == {
            "strict": 503,
            "gentle": 200,
            "cached": 200,
        }
        assert re.fullmatch(text, answers["strict"].json()["error"])
        assert rows_by_table(answers["gentle"].headers["X-Default-Rows"]) == rows
        assert rows_by_table(answers["cached"].headers["X-Stale-Rows"]) == rows
    finally:
        for node in served.cluster.nodes:
            node.start()
        until(served.cluster.is_whole)
        served.push()
    for model in _REMOTE:
        until(lambda model=model: not refusal(served, model, inputs))
        until(lambda model=model: served.predict(model, "plain", inputs) == (wanted, {}))


def name_is_no_id(name: str) -> bool:
    """Says whether an input of the mixed model holds no ids."""
    return name in ("dense", "tags__weights") or name.endswith("__row_splits")


def refusal(served: Served, model: str, inputs: dict[str, Array]) -> str:
    """Returns the text with which a Predict fails as UNAVAILABLE; "" if it is answered."""
    try:
        served.predict(model, "plain", inputs)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return str(error.details())
    return ""
