"""Makes example requests for the OpenAPI document that fit a model which is served now.

The examples hold id 0 and the string "key", never a real key of a vocabulary: a caller that may see the model may not
be allowed to read its keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from service.engine.engine import Engine, ModelDescription
from service.engine.table_view import vocabularies_of
from service.errors import ServiceError
from service.http.json_schema import Json
from service.types import ModelRef, SignatureSpec, TableInfo, TensorSpec
from service.wire.oip_tensors import datatype_name

# Most signatures for which the page /docs shows an example; more examples would hide the rest of the page.
_MAX_SIGNATURES = 4
# Methods of signatures that take tf.Examples: no request of `:predict` has a form for these that a person would write.
_EXAMPLE_METHODS = ("tensorflow/serving/classify", "tensorflow/serving/regress")
_ROUTES = {"lookup": ":lookup", "predict": ":predict", "infer": "/infer", "rows": ":rows", "neighbors": ":neighbors"}


# A model that can answer, with its tables; None if there is none.
Served = tuple[ModelDescription, Sequence[TableInfo]] | None


def add_examples(document: Json, served: Served) -> None:
    """Replaces the example requests in the OpenAPI document by requests for the model that served_model() returned, and
    names this model first in the document's description.
    """
    if served is None:
        return
    description, tables = served
    shown = ", ".join(f"`{info.name}` {info.vocabulary_size:,} x {info.embedding_dim}" for info in tables)
    first = f"All examples here are requests for the model **`{description.name}`**, version {description.version}"
    about = f"{first}{f' (tables: {shown})' if shown else ''}.\n\n{document['info']['description'].lstrip()}"
    document["info"] = document["info"] | {"description": about}
    requests = {
        _ROUTES["lookup"]: _requests(description, _is_lookup, _lookup),
        _ROUTES["predict"]: _requests(description, _is_predict, _predict),
        _ROUTES["infer"]: _requests(description, _is_predict, _infer),
        _ROUTES["rows"]: {"the first row": {"value": {"ids": [0]}}} if tables else {},
        _ROUTES["neighbors"]: {"of the first row": {"value": {"ids": [0], "k": 3}}} if tables else {},
    }
    values = {"model": description.name, "version": description.version, "to": description.version}
    values |= {"table": tables[0].name} if tables else {}
    keyed = [info.name for info in tables if vocabularies_of(description, info)]
    for path, methods in document["paths"].items():
        examples_of = values | {"table": keyed[0]} if keyed and path.endswith(":keys") else values
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in examples_of:
                    parameter["example"] = examples_of[parameter["name"]]
        for suffix, examples in requests.items():
            if path.endswith(suffix):
                methods["post"]["requestBody"]["content"]["application/json"]["examples"] = examples
                # The example answer in the OpenAPI document is removed, because it belongs to the example request that
                # was replaced.
                del methods["post"]["responses"]["200"]["content"]["application/json"]["examples"]


def served_model(engine: Engine) -> Served:
    """Returns the first model that can answer and that the caller may see, with its tables; None if there is none."""
    for name in engine.models():
        try:
            ref = ModelRef(name)
            return engine.describe(ref), engine.tables(ref)
        except ServiceError:
            continue
    return None


def _requests(
    description: ModelDescription, is_wanted: Callable[[SignatureSpec], bool], body: Callable[[SignatureSpec], Json]
) -> Json:
    wanted = [spec for spec in description.signatures.values() if is_wanted(spec)]
    return {f'signature "{spec.name}"': {"value": body(spec)} for spec in wanted[:_MAX_SIGNATURES]}


def _is_lookup(spec: SignatureSpec) -> bool:
    return spec.kind == "lookup"


def _is_predict(spec: SignatureSpec) -> bool:
    # A predict signature with a tensor of a dtype that numpy lacks gets no example in the OpenAPI document, because
    # JSON has no form for its values.
    has_json = all(tensor.numpy_dtype is not None for tensor in (*spec.inputs.values(), *spec.outputs.values()))
    return bool(spec.inputs) and has_json and spec.method_name not in _EXAMPLE_METHODS


def _lookup(spec: SignatureSpec) -> Json:
    return {"features": _columns(spec), "signature_name": spec.name}


def _predict(spec: SignatureSpec) -> Json:
    return {"inputs": _columns(spec), "signature_name": spec.name}


def _infer(spec: SignatureSpec) -> Json:
    tensors = []
    for tensor in _row_inputs(spec).values():
        shape = _shape(tensor)
        tensors.append(_tensor(tensor, shape, [_value(tensor)] * math.prod(shape)))
    for names in spec.ragged_names:
        values, splits = spec.inputs[names.values], spec.inputs[names.row_splits]
        tensors += [_tensor(values, [1], [_value(values)]), _tensor(splits, [2], [0, 1])]
    return {"inputs": tensors, "parameters": {"signature_name": spec.name}}


def _columns(spec: SignatureSpec) -> Json:
    """Returns an example request by columns: name of an input or of a ragged feature -> a list with one row."""
    columns = {name: _nested(_value(tensor), _shape(tensor)) for name, tensor in _row_inputs(spec).items()}
    return columns | {names.feature: [[_value(spec.inputs[names.values])]] for names in spec.ragged_names}


def _row_inputs(spec: SignatureSpec) -> Mapping[str, TensorSpec]:
    """Returns the inputs of an OpenAPI example request that are not ragged: all of a lookup, and only the required ones
    of a predict.
    """
    names = spec.row_inputs if spec.kind == "lookup" else spec.row_inputs & spec.required
    return {name: spec.inputs[name] for name in sorted(names)}


def _tensor(tensor: TensorSpec, shape: list[int], data: list[Any]) -> Json:
    return {"name": tensor.name, "datatype": datatype_name(tensor.dtype), "shape": shape, "data": data}


def _shape(tensor: TensorSpec) -> list[int]:
    return [1 if size is None else size for size in tensor.shape or ()]


def _nested(value: Any, shape: list[int]) -> Any:
    for size in reversed(shape):
        value = [value] * size
    return value


def _value(tensor: TensorSpec) -> Any:
    if tensor.dtype == "string":
        return "key" if tensor.vocabulary is not None else ""
    if tensor.dtype == "bool":
        return False
    return 0.0 if tensor.dtype in ("float16", "bfloat16", "float32", "float64") else 0
