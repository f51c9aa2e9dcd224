"""Adds the routes of models: status, metadata, tables, hot rows, comparisons, and those that the native core answers.

Source: tensorflow_serving/model_servers/http_rest_api_handler.cc (9d981c5).
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.artifact.signature_def import metadata_json
from service.engine.counts import DEFAULT_HOT_ROWS, MAX_HOT_ROWS, TableTraffic
from service.engine.engine import Engine
from service.errors import InvalidRequest, Overloaded
from service.http import openapi
from service.http.routing import add_route, in_the_core, model_ref, version_number
from service.http.schemas import INTEGER, Json, ref
from service.wire.api import statuses_json
from service.wire.json_body import encode_tables


def add_tfs_routes(app: FastAPI, engine: Engine) -> None:
    """Adds all routes of TensorFlow Serving's REST API."""

    async def status(request: Request) -> Response:
        """Returns the states of a model's versions, newest version first."""
        # A label in the path of a status request is ignored, as in TensorFlow Serving.
        request.path_params.pop("label", None)
        ref = model_ref(request)
        return Response(statuses_json(engine.statuses(ref.name, ref.version)), media_type="application/json")

    async def metadata(request: Request) -> Response:
        """Returns a model's signatures."""
        description = engine.describe(model_ref(request))
        data = metadata_json(description.name, description.version, description.signatures)
        return Response(data, media_type="application/json")

    async def models(request: Request) -> Response:
        """Lists the models that the caller may see, with the states of their versions."""
        listed = [
            {"name": name, **orjson.loads(statuses_json(statuses))} for name, statuses in engine.all_statuses().items()
        ]
        return Response(orjson.dumps({"models": listed}), media_type="application/json")

    async def no_name(request: Request) -> Response:
        """Refuses a status request whose path names no model."""
        raise InvalidRequest("Missing model name in request.")

    for where in ("", "/versions/{version}", "/labels/{label}"):
        path = "/v1/models/{model}" + where
        add_route(app, path + ":predict", in_the_core, "POST", openapi.predict(path))
        add_route(app, path + ":classify", in_the_core, "POST", openapi.classify(path))
        add_route(app, path + ":regress", in_the_core, "POST", openapi.regress(path))
        add_route(app, path, status, "GET", openapi.status(path))
        add_route(app, path + "/metadata", metadata, "GET", openapi.metadata(path))
    add_route(app, "/v1/models", models, "GET", openapi.models())
    for where in ("/versions/{version:int}", "/labels/{label}"):
        add_route(app, "/v1/models" + where, no_name, "GET")
        add_route(app, f"/v1/models{where}/metadata", no_name, "GET")


def add_lookup_routes(app: FastAPI, engine: Engine) -> None:
    """Adds the route of the list of tables, and the descriptions of lookups and of rows of a table."""

    async def tables(request: Request) -> Response:
        """Lists, as JSON, the embedding tables of a model version."""
        return Response(encode_tables(engine.tables(model_ref(request))), media_type="application/json")

    for where in ("", "/versions/{version}", "/labels/{label}"):
        path = "/v1/models/{model}" + where
        add_route(app, path + ":lookup", in_the_core, "POST", openapi.lookup(path))
        add_route(app, path + "/tables", tables, "GET", openapi.tables(path))
        add_route(app, path + "/tables/{table}:rows", in_the_core, "POST", openapi.rows(path))


_HOT_EXAMPLE: Json = {
    "model": "movielens",
    "version": 1,
    "table": "film",
    "lookups": 160_000,
    "distinct": 1201,
    "max_overcount": 0,
    "sampled": 5000,
    "oov_keys": 3,
    "rows": [{"id": 50, "key": None, "label": "Star Wars (1977)", "lookups": 4800, "share": 0.03}],
    "features": {"film_id": {"ids": 160_010, "unknown_ids": 10, "default_ids": 0}},
}


def add_hot_rows_route(app: FastAPI, engine: Engine) -> None:
    """Adds the HTTP route that lists the rows of a table that lookups read most."""

    async def hot(request: Request) -> Response:
        """Answers with the rows of a table that lookups read most, and with their counts."""
        where, table, most = model_ref(request), request.path_params["table"], _most(request)
        # A thread gathers the hot rows: sorting their counts and reading keys from the disk would block the event loop.
        found = await asyncio.to_thread(copy_context().run, engine.traffic, where, table, most)
        return Response(orjson.dumps(_document(found)), media_type="application/json")

    most: Json = {"type": "integer", "minimum": 1, "maximum": MAX_HOT_ROWS}
    parameter = {"name": "k", "in": "query", "schema": most, "description": f"Rows; {DEFAULT_HOT_ROWS} without it."}
    answer = ("Hot rows, the hottest first", ref("HotRowsResponse"), {"one row": _HOT_EXAMPLE})
    for where in ("", "/versions/{version}", "/labels/{label}"):
        path = "/v1/models/{model}" + where + "/tables/{table}"
        route = openapi.described("hotRows", "Versions", "Hot rows of a table", path, answer, query=[parameter])
        add_route(app, path + ":hot", hot, "GET", route)


def _most(request: Request) -> int:
    text = request.query_params.get("k", str(DEFAULT_HOT_ROWS))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_HOT_ROWS):
        raise InvalidRequest(f'Parameter "k" is {text!r}; expected a number of rows from 1 to {MAX_HOT_ROWS}.')
    return int(text)


def _document(found: TableTraffic) -> Json:
    return {
        **{name: getattr(found, name) for name in TableTraffic.__slots__ if name not in ("rows", "features")},
        "rows": [row._asdict() for row in found.rows],
        "features": {name: ids._asdict() for name, ids in found.features.items()},
    }


# Two threads suffice: one comparison of versions runs at a time, and the other thread returns results that are kept.
_NUM_THREADS = 2
_MAX_WAITING = 16
_PATH = "/v1/models/{model}/versions/{version}"
_NONE: Json = {"count": 0, "first": []}
_DIFF_EXAMPLE: Json = {
    "model": "movielens",
    "old": "1",
    "new": "2",
    "tables": [
        {
            "table": "film",
            "matched_by": "key",
            "old_rows": 1683,
            "new_rows": 1684,
            "old_dim": 32,
            "new_dim": 32,
            "old_dtype": "float32",
            "new_dtype": "float32",
            "added": {"count": 1, "first": ["1683"]},
            "removed": _NONE,
            "moved": _NONE,
            "common": 1682,
            "drift": {
                "rows": 1682,
                "is_aligned": True,
                "cosines": {"edges": [-1.0, 0.0, 1.0], "counts": [2, 1680]},
                "norm_ratios": {"edges": [0.5, 1.0, 2.0], "counts": [800, 882]},
                "median_cosine": 0.93,
                "median_unaligned_cosine": 0.01,
                "median_norm_ratio": 1.02,
                "outlying": 0,
                "directions": [29.4, 29.1],
                "equal": 0,
                "drifted": 2,
                "percent": 0.12,
                "worst": [{"name": "1653", "old_id": 1653, "new_id": 1653, "cosine": -0.2}],
            },
            "neighbours": {
                "k": 10,
                "queries": 200,
                "is_hottest": True,
                "pool": 1682,
                "overlap": 0.71,
                "chance": 0.006,
            },
            "notes": [],
        }
    ],
    "predictions": None,
    "added_tables": [],
    "removed_tables": [],
    "notes": [],
    "drift_percent": 0.12,
    "drifted_cosine": 0.3,
}


def add_diff_route(app: FastAPI, engine: Engine) -> None:
    """Adds the HTTP route that compares two versions, in threads that run no other requests."""
    threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="http-diff")
    waiting = 0

    async def diff(request: Request) -> Response:
        """Compares a version of a model with another one: rows, drift, neighbours."""
        nonlocal waiting
        where = model_ref(request)
        if not (to := request.query_params.get("to", "")):
            raise InvalidRequest("Name the version to compare with: versions/1:diff?to=2.")
        new, old = version_number(to), where.version
        assert old is not None  # The HTTP path of the route that compares (diffs) two versions always names a version.
        if waiting >= _MAX_WAITING:
            raise Overloaded(f"{_MAX_WAITING} comparisons of versions wait already; try again later.")
        waiting += 1
        try:
            # copy_context() carries the caller's rights (the grant) to the thread that compares the two versions.
            run, loop = copy_context().run, asyncio.get_running_loop()
            found = await loop.run_in_executor(threads, run, engine.diff, where.name, old, new)
        finally:
            waiting -= 1
        return Response(orjson.dumps(found), media_type="application/json")

    answer = ("What changed from the version to version `to`", ref("VersionDiff"), {"a rotation": _DIFF_EXAMPLE})
    to_version = {"name": "to", "in": "query", "required": True, "schema": INTEGER, "example": 2}
    route = openapi.described("diff", "Versions", "Compare two versions", _PATH, answer, query=[to_version])
    add_route(app, _PATH + ":diff", diff, "GET", route)
