"""Handles the gRPC methods Classify, Regress and MultiInference, from request bytes to answer bytes.

Source: tensorflow_serving/servables/tensorflow/{classifier,regressor,multi_inference}.cc (9d981c5).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from service.engine.call import Call
from service.engine.engine import Engine
from service.engine.inference import CLASSIFY_METHOD, REGRESS_METHOD, UNKNOWN_SIGNATURE, wanted_outputs
from service.errors import InvalidRequest, ServiceError
from service.types import ModelRef
from service.wire.example_proto import (
    decode_examples,
    decode_examples_request,
    decode_multi_inference,
    encode_classification,
    encode_multi_inference,
    encode_regression,
)
from service.wire.grpc_api import API, PREDICTION_SERVICE, Handler


def inference_methods(engine: Engine) -> dict[str, Handler]:
    """Returns the handlers of Classify, Regress and MultiInference, by path. Concurrency: any thread may call them."""
    return {
        f"/{PREDICTION_SERVICE}/Classify": partial(
            _infer,
            engine,
            "Classify",
            CLASSIFY_METHOD,
            "tensorflow.serving.ClassificationRequest",
            encode_classification,
        ),
        f"/{PREDICTION_SERVICE}/Regress": partial(
            _infer, engine, "Regress", REGRESS_METHOD, "tensorflow.serving.RegressionRequest", encode_regression
        ),
        f"/{PREDICTION_SERVICE}/MultiInference": partial(_multi_inference, engine),
    }


def _infer(
    engine: Engine,
    method: str,
    method_name: str,
    request_type: str,
    encode: Callable[..., bytes],
    data: bytes,
    deadline_s: float | None,
) -> bytes:
    call = Call(API, method, engine.clock(), deadline_s)
    try:
        request = decode_examples_request(request_type, data)
    except ServiceError as error:
        engine.reject(error, call)
        raise
    with engine.bind(request.ref, request.signature_name, call, unknown_signature=UNKNOWN_SIGNATURE) as bound:
        # Whether the signature fits the method is checked before the examples are decoded, so that this error is
        # reported first.
        wanted_outputs(bound.spec, method_name)
        result = bound.infer(method_name, decode_examples(request.input))
        return encode(result, model=bound.model, version=bound.version, signature_name=bound.spec.name)


def _multi_inference(engine: Engine, data: bytes, deadline_s: float | None) -> bytes:
    call = Call(API, "MultiInference", engine.clock(), deadline_s)
    try:
        request = decode_multi_inference(data)
    except ServiceError as error:
        engine.reject(error, call)
        raise
    ref = request.ref
    with ExitStack() as stack:
        tasks = []
        for task in request.tasks:
            bound = stack.enter_context(
                engine.bind(
                    ref,
                    task.signature_name,
                    call,
                    unknown_signature="Requested signature not found in model graph: {}",
                )
            )
            wanted_outputs(bound.spec, task.method_name)
            tasks.append((task, bound))
            # All later tasks of a MultiInference request are given the version of the first task, so that they run on
            # this version even if a newer one is loaded meanwhile.
            ref = ModelRef(ref.name, bound.version)
        if request.problem:
            raise InvalidRequest(request.problem)
        examples = decode_examples(request.input)
        results = [(task.signature_name, bound.infer(task.method_name, examples)) for task, bound in tasks]
        return encode_multi_inference(results, model=bound.model, version=bound.version)
