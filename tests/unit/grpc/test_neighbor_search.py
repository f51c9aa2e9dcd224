"""The signature "neighbors" of Predict searches the toy model's tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.artifact.protos import message_class
from service.artifact.tensor_proto import decode_tensor
from service.engine.engine import Engine
from service.errors import InputMismatch, ModelNotFound, ServiceError, TableNotFound, Unimplemented
from service.grpc.methods import service_methods
from service.types import ModelRef
from service.wire.api import PREDICT
from tests.conftest import RecordingObserver
from tests.unit.grpc.test_methods import predict_request


def text(value: str) -> Any:
    """Returns a scalar string."""
    return np.array(value.encode(), object)


def search(engine: Engine, *, model: str = "toy", output_filter: tuple[str, ...] = (), **inputs: Any) -> Any:
    """Sends a search; returns the answer."""
    request = predict_request(inputs, model=model, signature_name="neighbors", output_filter=output_filter)
    data = service_methods(engine)[PREDICT](request.SerializeToString(), None)
    return message_class("tensorflow.serving.PredictResponse").FromString(data)


def arrays(answer: Any) -> dict[str, list[Any]]:
    """Returns a response's outputs by name, as lists."""
    return {name: decode_tensor(name, tensor, 100).tolist() for name, tensor in answer.outputs.items()}


# Rows of "tag" are [i, i * i, 1]; its keys are red, green and blue for rows 1 to 3.
def test_neighbors_of_a_key_by_hand(toy_engine: Engine) -> None:
    answer = search(
        toy_engine,
        table=text("tag"),
        keys=np.array([b"blue"], object),
        k=np.array(2),
        metric=text("l2"),
        exclude_ids=np.array([2]),
    )
    assert arrays(answer) == {"ids": [[1, 0]], "scores": [[68.0, 90.0]], "keys": [[b"red", b""]]}
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("toy", 1, "neighbors")


def test_missing_neighbors_are_filled_up(toy_engine: Engine) -> None:
    inputs = {"table": text("tag"), "vectors": np.ones((1, 3), np.float32), "filter_ids": np.array([3])}
    found = arrays(search(toy_engine, output_filter=("ids", "scores"), **inputs))
    assert (
        found["ids"] == [[3, -1, -1, -1]] and found["scores"][0][0] == 13.0 and np.isnan(found["scores"][0][1:]).all()
    )


@pytest.mark.parametrize(
    ("inputs", "error", "told"),
    [
        ({"ids": np.array([1])}, InputMismatch, 'input "table" is missing'),
        ({"table": text("film"), "ids": np.array([1])}, TableNotFound, "Tables: tag, user."),
        ({"model": "nobody", "table": text("tag"), "ids": np.array([1])}, ModelNotFound, "Latest(nobody)"),
    ],
)
def test_errors(
    toy_engine: Engine, observer: RecordingObserver, inputs: Any, error: type[ServiceError], told: str
) -> None:
    with pytest.raises(error) as caught:
        search(toy_engine, **inputs)
    assert told in caught.value.message
    (counted,) = observer.finished_requests
    assert (counted["api"], counted["method"], counted["error"].code) == ("grpc", "Predict", error.code)


def test_a_models_own_signature_of_that_name_comes_first(toy_engine: Engine) -> None:
    (holder,) = toy_engine._registry.holders()
    own = replace(holder.servable.signatures["lookup"], name="neighbors")
    signatures = {**holder.servable.signatures, "neighbors": own}
    holder.servable = replace(holder.servable, signatures=signatures)
    assert not toy_engine.searches_by_signature(ModelRef("toy"))
    with pytest.raises(Unimplemented, match='^Signature "neighbors" of model "toy" can not be run'):
        search(toy_engine, table=text("tag"), ids=np.array([1]))
