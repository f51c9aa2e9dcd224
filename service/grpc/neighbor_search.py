"""Answers Predict requests with the signature "neighbors": searches for nearest rows, for any client of Predict."""

from __future__ import annotations

from contextvars import copy_context

from service.engine.call import Call
from service.engine.engine import Engine
from service.engine.neighbors import SIGNATURE
from service.errors import ServiceError
from service.wire.neighbor_tensors import decode_search, encode_answer
from service.wire.predict_proto import PredictRequest, decode_inputs, encode_response


def is_search(engine: Engine, request: PredictRequest) -> bool:
    """Says whether a Predict request is a search for nearest rows; False if its model has a signature "neighbors"."""
    return request.signature_name == SIGNATURE and engine.searches_by_signature(request.ref)


def search(engine: Engine, request: PredictRequest, call: Call, *, as_content: bool) -> bytes:
    """Searches for nearest rows, in a thread for searches, and returns the result as a PredictResponse. Blocks.

    Args:
      as_content: True puts the values into tensor_content, False into the `*_val` fields.

    Raises:
      ServiceError: as Engine.neighbors; Overloaded or DeadlineExceeded if no thread is free in time.
    """

    def run(refusal: ServiceError | None) -> bytes:
        try:
            if refusal is not None:
                raise refusal
            table, query = decode_search(decode_inputs(request))
        except ServiceError as error:
            engine.reject(error, call, model=request.ref.name)
            raise
        found = engine.neighbors(request.ref, table, query, call)
        return encode_response(
            encode_answer(found, request.output_filter),
            model=request.ref.name,
            version=found.version,
            signature_name=SIGNATURE,
            as_content=as_content,
        )

    # copy_context() carries the request's id, its trace and its caller's grant to the thread.
    context = copy_context()
    job = engine.searches.pool.submit(
        engine.share_of(request.ref.name), lambda refusal: context.run(run, refusal), call.deadline_s
    )
    answer: bytes = job.result()
    return answer
