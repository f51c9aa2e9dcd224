"""Calls every REST route of the server's OpenAPI document with curl."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlencode

from loadtest.stock_clients.outcome import Check, Place, Skip, require

CLIENT = "curl"
_TIMEOUT_S = 60


def checks(place: Place) -> Iterator[Check]:
    with urllib.request.urlopen(f"{place.http}/openapi.json", timeout=_TIMEOUT_S) as response:
        document = json.load(response)
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            queries = [one for one in operation.get("parameters", ()) if one["in"] == "query" and "example" in one]
            query = urlencode({one["name"]: one["example"] for one in queries})
            yield Check(CLIENT, f"{verb.upper()} {path}", partial(_documented, place, verb, path, query))
    url, monitoring = f"/v1/models/{place.model.name}", "/monitoring/prometheus/metrics"
    yield Check(CLIENT, "POST :predict, instances", partial(_instances, place))
    yield Check(CLIENT, "POST :predict, broken JSON", partial(_refused, place, f"{url}:predict", "{", 400))
    yield Check(CLIENT, "GET a model that is not there", partial(_refused, place, "/v1/models/nothing", None, 404))
    yield Check(CLIENT, "GET outside /v1", partial(_refused, place, "/v2000", None, 404))
    yield Check(CLIENT, f"GET {monitoring}", partial(_get_text, place, monitoring))


def _documented(place: Place, verb: str, path: str, query: str) -> str:
    if path.startswith("/v2"):
        raise Skip("the routes of the Open Inference Protocol are tritonclient's")
    model = place.model
    table = next(iter(model.tables), "")
    if "{table}" in path and not table:
        raise Skip("the model has no tables")
    if "{label}" in path:
        raise Skip("the server gives the model no label")
    names = {"model": model.name, "version": model.version, "table": table}
    url = path.format(**names) + (f"?{query}" if query else "")
    if verb == "get" and "json" not in _content_type(place, url):
        return _get_text(place, url)
    if verb == "get":
        status, answer = _curl(place, url)
        # The HTTP status 202 is right for these paths: the server computes a map and its colours in the background.
        is_computed = path.endswith((":projection", ":drift", ":names"))
        require(status == 200 or (status == 202 and is_computed), f"{status}: {answer}")
        return json.dumps(answer)
    kind = path.rpartition(":")[2]
    body = _body(place, kind)
    status, answer = _curl(place, url, json.dumps(body))
    require(status == 200, f"{status}: {answer}")
    return json.dumps(answer)


def _body(place: Place, kind: str) -> dict[str, Any]:
    model = place.model
    if kind == "rows":
        return {"ids": [1, 0]}
    if kind == "neighbors":
        return {"ids": [1], "k": 2}
    if kind == "lookup":
        if not model.lookups():
            raise Skip("the model has no lookups")
        return {"signature_name": model.lookups()[0].name, "features": model.lookups()[0].columns()}
    if kind in ("classify", "regress"):
        found = model.of_method(kind)
        if not found:
            raise Skip(f"the model has no signature to {kind}")
        return {"signature_name": found[0].name, "examples": [place.example]}
    if not model.predicted():
        raise Skip("every signature of the model takes tf.Examples")
    signature = model.predicted()[-1]
    return {"signature_name": signature.name, "inputs": signature.columns()}


def _instances(place: Place) -> str:
    if not place.model.predicted():
        raise Skip("every signature of the model takes tf.Examples")
    signature = place.model.predicted()[-1]
    columns = signature.columns()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    body = {"signature_name": signature.name, "instances": rows}
    status, answer = _curl(place, f"/v1/models/{place.model.name}:predict", json.dumps(body))
    require(status == 200 and len(answer["predictions"]) == len(rows), f"{status}: {answer}")
    return json.dumps(answer)


def _refused(place: Place, url: str, body: str | None, expected: int) -> str:
    status, answer = _curl(place, url, body)
    require(status == expected and {*answer} - {"models"} == {"error"}, f"{status}: {answer}")
    return f"{status} {json.dumps(answer)}"


def _get_text(place: Place, url: str) -> str:
    done = _run(place, url)
    status, _, text = done.partition("\n")
    require(status == "200" and text != "", done)
    return f"{len(text.splitlines())} lines"


def _content_type(place: Place, url: str) -> str:
    return _run(place, url, "-o/dev/null", "-w%{content_type}")


def _curl(place: Place, url: str, body: str | None = None) -> tuple[int, Any]:
    options = [] if body is None else ["-d", body]
    status, _, text = _run(place, url, *options).partition("\n")
    return int(status), json.loads(text)


def _run(place: Place, url: str, *options: str) -> str:
    """Runs curl; returns status and body, divided by a line break, or, with -w among the options, curl's own output."""
    binary = shutil.which("curl")
    if binary is None:
        raise Skip("curl is not on PATH")
    # With -w, curl prints the status as a last line after the body, which may hold any bytes; -D - would print all
    # headers, too.
    command = [binary, "-sS", *(options or ()), f"{place.http}{url}"]
    if not any(option.startswith("-w") for option in options):
        command += ["-w", "\n%{http_code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    require(done.returncode == 0, done.stderr)
    body, _, status = done.stdout.rpartition("\n")
    return f"{status}\n{body}" if body else done.stdout
