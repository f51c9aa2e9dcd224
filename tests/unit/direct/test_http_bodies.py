"""Plain lookups over HTTP are answered as FastAPI answers them, and all else is left to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service.direct.http_bodies import DirectHttp

from service.core.engine import Engine
from service.core.types import ModelRef
from service.loading.loader import ServableLoader
from tests.conformance.wires import HttpClient, http_client
from tests.conftest import RecordingObserver, serving
from tests.toy_policies import write_policy_model

# Features of both models' `lookup` by what they are sent.
SINGLE = {"toy": ("user",), "policies": ("one_negative", "one_clamp")}
RAGGED = {
    "toy": ("tags", "tags_sum", "tags_sqrtn"),
    "policies": ("drop_negative", "clamp", "default", "positive", "words_or_rows", "path", "path_default"),
}
PADDED = {"toy": ("user", "tags", "tags_sum"), "policies": ("clamp", "default")}


class Watched:
    """DirectHttp, and how many requests it answered."""

    def __init__(self, directly: DirectHttp) -> None:
        self._directly, self.answered = directly, 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(*arguments: Any) -> Any:
            found = getattr(self._directly, name)(*arguments)
            self.answered += found is not None
            return found

        return answer


@dataclass(frozen=True)
class Both:
    """The same application with and without the direct path."""

    engine: Engine
    observer: RecordingObserver
    directly: Watched
    hot: HttpClient
    general: HttpClient

    def ask(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[httpx.Response, bool]:
        """Returns the answer, which is the same for both, and whether it came directly."""
        before = self.directly.answered
        self.observer.finished_requests.clear()
        answers, counts, told = [], [], []
        for client in (self.general, self.hot):
            counts.append(self.counts())
            answers.append(client.exchange("POST", path, body, {"x-request-id": "1"} | (headers or {})))
            (request,) = self.observer.finished_requests
            told.append({k: v for k, v in request.items() if k not in ("seconds", "run_seconds", "error")})
            self.observer.finished_requests.clear()
        counts.append(self.counts())
        expected, found = answers
        assert (found.status_code, found.content) == (expected.status_code, expected.content)
        assert sorted(found.headers.raw) == sorted(expected.headers.raw)
        # In the metrics the two are one as well.
        assert told[0] == told[1]
        assert counts[1] - counts[0] == pytest.approx(counts[2] - counts[1])
        return found, self.directly.answered > before

    def counts(self) -> np.ndarray:
        """Returns what was read of all tables so far."""
        totals = []
        for name in ("toy", "policies"):
            with self.engine._registry.lease(ModelRef(name)) as servable:
                totals += [count for _, table in sorted(servable.table_counts().items()) for count in table]
        return np.array(totals)


@pytest.fixture(scope="module")
def both(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    registry = serving(toy_model)
    registry.add_model("policies")
    registry.start("policies", 1)
    folder = write_policy_model(tmp_path_factory.mktemp("hot") / "1")
    registry.publish(ServableLoader(frozenset({"serve"}), "off", 1)("policies", 1, folder))
    observer = RecordingObserver()
    engine = Engine(registry, observer, max_response_bytes=4096)
    directly = Watched(DirectHttp(engine, "http"))
    with http_client(engine, directly=directly) as hot, http_client(engine, directly=None) as general:
        yield Both(engine, observer, directly, hot, general)


@st.composite
def asked(draw: st.DrawFn, *, worst: int) -> tuple[str, str, dict[str, Any], int]:
    """Draws a model, a signature, ids by feature, from -worst to worst beyond what tables hold, and how many rows."""
    model = draw(st.sampled_from(["toy", "policies"]))
    signature = draw(st.sampled_from(["lookup", "lookup", "lookup_tpu_tensor_core"]))
    known = (*SINGLE[model], *RAGGED[model]) if signature == "lookup" else PADDED[model]
    features = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
    rows = draw(st.integers(1, 4))
    ids = st.integers(-worst, 2 + worst)
    found = {}
    for feature in features:
        of_row = ids if feature in SINGLE[model] else st.lists(ids, max_size=3)
        found[feature] = draw(st.lists(of_row, min_size=rows, max_size=rows))
    return model, signature, found, rows


@st.composite
def json_requests(draw: st.DrawFn, *, worst: int) -> tuple[str, bytes]:
    """Draws a path and a body in one of the three forms, compact or with white space."""
    model, signature, ids, rows = draw(asked(worst=worst))
    form = draw(st.sampled_from(["features", "inputs", "instances", "parts"]))
    method = "lookup" if form == "features" else "predict"
    document: dict[str, Any] = {"signature_name": signature}
    if form == "instances":
        document[form] = [{name: ids[name][row] for name in ids} for row in range(rows)]
    elif form == "parts":
        document["inputs"] = parts_of(ids)
    else:
        document[form] = ids
    members = draw(st.permutations(list(document.items())))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")]))
    where = draw(st.sampled_from(["", "/versions/1"]))
    return f"/v1/models/{model}{where}:{method}", json.dumps(dict(members), separators=separators).encode()


def parts_of(ids: dict[str, Any]) -> dict[str, list[int]]:
    """Returns ragged ids as values and row splits."""
    found: dict[str, list[int]] = {}
    for name, rows in ids.items():
        if not isinstance(rows[0], list):
            found[name] = rows
            continue
        found[f"{name}__values"] = [one for row in rows for one in row]
        found[f"{name}__row_splits"] = np.cumsum([0, *map(len, rows)]).tolist()
    return found


@st.composite
def binary_requests(draw: st.DrawFn, *, worst: int) -> tuple[str, bytes, dict[str, str]]:
    """Draws an inference request of binary tensors."""
    model, signature, ids, rows = draw(asked(worst=worst))
    dtype, datatype = ("<i8", "INT64") if signature == "lookup" else ("<i4", "INT32")
    inputs, data = [], b""
    tensors = parts_of(ids)
    for name in draw(st.permutations(list(tensors))):
        is_splits = name.endswith("__row_splits")
        tensor = np.array(tensors[name], "<i8" if is_splits else dtype).tobytes()
        size = {"binary_data_size": len(tensor)}
        inputs.append(
            {
                "name": name,
                "datatype": "INT64" if is_splits else datatype,
                "shape": [len(tensors[name])],
                "parameters": size,
            }
        )
        data += tensor
    document: dict[str, Any] = {"inputs": inputs, "parameters": {"signature_name": signature}}
    if draw(st.booleans()):
        document["parameters"]["binary_data_output"] = True
    else:
        names = draw(st.lists(st.sampled_from(list(ids)), min_size=1, unique=True))
        document["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in names]
    if draw(st.booleans()):
        document["id"] = draw(st.text(max_size=5, alphabet=st.characters(exclude_categories=["Cs"])))
    head = json.dumps(document).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return f"/v2/models/{model}/infer", head + data, headers


# What a flipped byte may become: what JSON is made of, and what it must not hold.
BYTES = b'0123456789-.eE[]{}:,"\\ \n\x00\xff'
anything = settings(max_examples=150, deadline=None)


@anything
@given(drawn=json_requests(worst=0))
def test_good_json_is_answered_directly(both: Both, drawn: tuple[str, bytes]) -> None:
    answer, is_direct = both.ask(*drawn)
    # More ids in a row than the padded signature takes are an error.
    assert is_direct == (answer.status_code == 200)


@anything
@given(drawn=binary_requests(worst=0))
def test_good_tensors_are_answered_directly(both: Both, drawn: tuple[str, bytes, dict[str, str]]) -> None:
    answer, is_direct = both.ask(*drawn)
    has_unasked = b'"outputs"' in drawn[1]
    assert is_direct or has_unasked or answer.status_code != 200


@anything
@given(drawn=st.one_of(json_requests(worst=3), binary_requests(worst=3)))
def test_bad_ids_are_answered_as_ever(both: Both, drawn: tuple[Any, ...]) -> None:
    both.ask(*drawn)


@anything
@given(
    drawn=st.one_of(json_requests(worst=1), binary_requests(worst=1)),
    changes=st.lists(st.tuples(st.integers(0, 400), st.sampled_from(BYTES)), max_size=3),
    cut=st.one_of(st.none(), st.integers(0, 500)),
)
def test_changed_bytes_never_get_another_answer(
    both: Both, drawn: tuple[Any, ...], changes: list[tuple[int, int]], cut: int | None
) -> None:
    path, body, *headers = drawn
    changed = bytearray(body)
    for position, byte in changes:
        changed[position % len(changed)] = byte
    both.ask(path, bytes(changed[:cut]), *headers)


PLAIN = b'{"features": {"user": [1, 2]}}'
LOOKUP = "/v1/models/toy:lookup"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (LOOKUP, b'{"features": {"user": [1, 2], "user": [1, 2]}}'),
        (LOOKUP, b'{"features": {"user": [1]}, "features": {"user": [1]}}'),
        (LOOKUP, b'{"features": {"user": [1]}, "signature_name": "lookup", "signature_name": "lookup"}'),
        (LOOKUP, b'{"features": {"user": [1], "tags": [[1], [2]]}}'),
        (LOOKUP, b'{"features": {"user": [1.0]}}'),
        (LOOKUP, b'{"features": {"user": [1e0]}}'),
        (LOOKUP, b'{"features": {"user": [01]}}'),
        (LOOKUP, b'{"features": {"user": [-0]}}'),
        (LOOKUP, b'{"features": {"user": [1234567890123456789]}}'),
        (LOOKUP, b'{"features": {"user": [12345678901234567890]}}'),
        (LOOKUP, b'{"features": {"user": 1}}'),
        (LOOKUP, b'{"features": {"user": []}}'),
        (LOOKUP, b'{"features": {"user": [[1]]}}'),
        (LOOKUP, b'{"features": {"tags": [1]}}'),
        (LOOKUP, b'{"features": {"tags": [[1], 2]}}'),
        (LOOKUP, b'{"features": {"tags__values": [1], "tags__row_splits": [0, 1]}}'),
        (LOOKUP, b'{"features": {"us\\u0065r": [1]}}'),
        (LOOKUP, b'{"features": {"user": [1]}, "weights": {}}'),
        (LOOKUP, b'{"features": {"tags": [[1]]}, "weights": {"tags": [[2]]}}'),
        (LOOKUP, b'{"features": {"user": [1]}} x'),
        (LOOKUP, b'{"features": {"user": [1]}, "signature_name": "none"}'),
        (LOOKUP, b'{"inputs": {"user": [1]}}'),
        (LOOKUP, b'{"features": {"user": [%s1]}}' % (b"1, " * 300)),
        ("/v1/models/toy:predict", PLAIN),
        ("/v1/models/toy:predict", b'{"inputs": {"user": [1]}}'),
        ("/v1/models/toy:predict", b'{"inputs": {"tags": [[1]], "tags__values": [1]}, "signature_name": "lookup"}'),
        (
            "/v1/models/toy:predict",
            b'{"inputs":{"user":[1,2],"tags__values":[1,2],"tags__row_splits":[0,2]},"signature_name":"lookup"}',
        ),
        ("/v1/models/toy:predict", b'{"inputs": {"tags__values": [1, 2]}, "signature_name": "lookup"}'),
        ("/v1/models/toy:predict", b'{"instances": [{"user": 1}, {"user": [2]}], "signature_name": "lookup"}'),
        ("/v1/models/toy:predict", b'{"instances": [{"user": 1}, {}], "signature_name": "lookup"}'),
        ("/v1/models/toy:predict", b'{"instances": [1, 2], "signature_name": "lookup"}'),
        ("/v1/models/policies:lookup", b'{"features": {"code": [100]}}'),
        ("/v1/models/policies:lookup", b'{"features": {"word": ["red"]}}'),
        ("/v1/models/none:lookup", PLAIN),
        ("/v1/models/toy/versions/7:lookup", PLAIN),
        ("/v1/models/toy/labels/stable:lookup", PLAIN),
    ],
    ids=range(36),
)
def test_what_is_unusual_is_left_alone(both: Both, path: str, body: bytes) -> None:
    _, is_direct = both.ask(path, body)
    assert not is_direct


@pytest.mark.parametrize(
    ("headers", "is_plain"),
    [
        ({"content-encoding": "identity"}, False),
        ({"accept-encoding": "gzip"}, True),
        ({"content-type": "text/plain"}, True),
        ({"x-request-id": "mine"}, True),
    ],
    ids=str,
)
def test_headers(both: Both, headers: dict[str, str], is_plain: bool) -> None:
    assert both.ask(LOOKUP, PLAIN, headers)[1] == is_plain


def test_what_is_answered_is_what_the_tables_hold(both: Both) -> None:
    answer, is_direct = both.ask(LOOKUP, b'{"features": {"tags": [[1, 2], []], "user": [2, 0]}}')
    assert is_direct
    general = both.general.exchange("POST", LOOKUP, b'{"features": {"user": [2, 0], "tags": [[1, 2], []]}}')
    assert answer.json() == general.json()
