"""Serves constant answers with a FastAPI route, which reads the body of the request."""

from __future__ import annotations

import uvloop
from fastapi import FastAPI, Request, Response

from loadtest.bench.baselines.answers import constant_answers
from loadtest.bench.baselines.asgi_constant import serve


def create_app() -> FastAPI:
    """Makes the FastAPI application that sends the constant answers."""
    app = FastAPI()
    answers = constant_answers("json")

    @app.post("/constant/{workload}")
    async def constant(workload: str, request: Request) -> Response:
        await request.body()
        return Response(answers[f"/constant/{workload}"], media_type="application/json")

    return app


if __name__ == "__main__":
    uvloop.run(serve(create_app()))
