"""Calls the server's Open Inference Protocol with tritonclient, over HTTP and gRPC."""

from __future__ import annotations

import importlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from loadtest.stock_clients.outcome import Check, Place, Skip, require

CLIENT = "tritonclient"


def checks(place: Place) -> Iterator[Check]:
    for wire, address in (("http", place.http.removeprefix("http://")), ("grpc", place.grpc)):
        yield Check(CLIENT, f"{wire}: live, ready, metadata", partial(_describe, place, wire, address))
        yield Check(CLIENT, f"{wire}: infer", partial(_infer, place, wire, address))


def _client(place: Place, wire: str, address: str) -> tuple[Any, Any]:
    try:
        with urllib.request.urlopen(f"{place.http}/v2/health/live", timeout=30):
            pass
    except urllib.error.HTTPError as error:
        raise Skip(f"the server has no /v2 ({error.code})") from error
    try:
        module: Any = importlib.import_module(f"tritonclient.{wire}")
    except ImportError as error:
        raise Skip(f"not installed: {error}") from error
    return module, module.InferenceServerClient(address)


def _describe(place: Place, wire: str, address: str) -> str:
    _, client = _client(place, wire, address)
    name = place.model.name
    require(client.is_server_live() and client.is_server_ready() and client.is_model_ready(name), "not ready")
    metadata = client.get_model_metadata(name)
    found = metadata if isinstance(metadata, dict) else {"name": metadata.name, "platform": metadata.platform}
    require(found["name"] == name, str(found))
    return str(found)


def _infer(place: Place, wire: str, address: str) -> str:
    module, client = _client(place, wire, address)
    found = [s for s in place.model.predicted() if s.name == "serving_default"] or list(place.model.lookups())
    if not found:
        raise Skip("the model has no signature for it")
    numbers = importlib.import_module("tritonclient.utils")
    inputs = []
    for name, tensor in found[0].tensors().items():
        sent = module.InferInput(name, list(tensor.shape), numbers.np_to_triton_dtype(tensor.dtype))
        sent.set_data_from_numpy(tensor)
        inputs.append(sent)
    result = client.infer(place.model.name, inputs)
    response = result.get_response()
    names = (
        [o["name"] for o in response["outputs"]] if isinstance(response, dict) else [o.name for o in response.outputs]
    )
    arrays = {name: result.as_numpy(name) for name in names}
    require(bool(arrays) and all(isinstance(array, np.ndarray) for array in arrays.values()), str(response))
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in arrays.items())
