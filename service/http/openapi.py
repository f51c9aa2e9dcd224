"""Makes the OpenAPI document: the routes' operations, schemas of all bodies, and examples for a model that is served.

Routes read raw bytes, so FastAPI can not derive the document from them: operations describes them, bodies has their
types. If a model can answer, examples for that model replace the general ones. Those hold id 0 and the string "key",
never a real key of a vocabulary: a caller that may see the model may not be allowed to read its keys.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from starlette.routing import BaseRoute

from service.control.engine import Engine, ModelDescription
from service.control.table_view import vocabularies_of
from service.errors import ServiceError
from service.http.bodies import Error, ErrorCode, Json, example_of, schemas
from service.http.errors import CODE_HEADER
from service.http.operations import DESCRIBED, ERRORS, TAGS, Operation
from service.http.routing import RawRoute, in_the_core
from service.types import ModelRef, SignatureSpec, TableInfo, TensorSpec
from service.wire.oip_models import datatype_name

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
        _ROUTES["lookup"]: _requests(description, lambda spec: spec.kind == "lookup", partial(_by_column, "features")),
        _ROUTES["predict"]: _requests(description, _is_predict, partial(_by_column, "inputs")),
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
                # The example answer belongs to the request that was replaced.
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


def _is_predict(spec: SignatureSpec) -> bool:
    # A predict signature with a tensor of a dtype that numpy lacks gets no example in the OpenAPI document, because
    # JSON has no form for its values.
    has_json = all(tensor.numpy_dtype is not None for tensor in (*spec.inputs.values(), *spec.outputs.values()))
    return bool(spec.inputs) and has_json and spec.method_name not in _EXAMPLE_METHODS


def _infer(spec: SignatureSpec) -> Json:
    tensors = []
    for tensor in _row_inputs(spec).values():
        shape = _shape(tensor)
        tensors.append(_tensor(tensor, shape, [_value(tensor)] * math.prod(shape)))
    for names in spec.ragged_names:
        values, splits = spec.inputs[names.values], spec.inputs[names.row_splits]
        tensors += [_tensor(values, [1], [_value(values)]), _tensor(splits, [2], [0, 1])]
    return {"inputs": tensors, "parameters": {"signature_name": spec.name}}


def _by_column(field: str, spec: SignatureSpec) -> Json:
    columns = {name: _nested(_value(tensor), _shape(tensor)) for name, tensor in _row_inputs(spec).items()}
    columns |= {names.feature: [[_value(spec.inputs[names.values])]] for names in spec.ragged_names}
    return {field: columns, "signature_name": spec.name}


def _row_inputs(spec: SignatureSpec) -> Mapping[str, TensorSpec]:
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


_DESCRIPTION = """
Embedding lookups straight from memory-mapped tables, and TensorFlow Serving's REST API for everything else.

* `:lookup` takes ids (or the keys of a feature's vocabulary, strings or integers) and answers one combined vector per
  row, or one vector per id where the feature is a sequence.
* `:predict` takes and answers what TensorFlow Serving does, for every signature of a model.
* `/tables` shows the embedding tables and their rows; `:neighbors` finds the rows that are nearest to others.
* `/v2` is the Open Inference Protocol, as KServe and Triton have it, for the same models.

Every error has the body `{"error": "<text>"}`. Answers carry `X-Request-Id`: the client's own, or a new one. Those that
a version of a model computed carry `X-Model-Version`.
Bodies may be sent with `Content-Encoding: gzip` or `deflate`. The same models answer TensorFlow Serving's gRPC API.
"""
_TOKEN = "The token of a caller, if the server has callers."


class Documents:
    """Makes the OpenAPI document of an application's routes, and keeps it until another model is served."""

    def __init__(self, routes: Iterable[BaseRoute], engine: Engine, *, strict_json: bool) -> None:
        self._described = [
            (route, DESCRIBED[route.operation]) for route in routes if isinstance(route, RawRoute) and route.operation
        ]
        self._engine = engine
        self._strict_json = strict_json
        self._last: tuple[object, Json] | None = None

    def read(self) -> Json:
        """Returns the document for the caller; takes several milliseconds if another model is served."""
        served = served_model(self._engine)
        # The model's description is not kept, because it would keep the vocabularies of an unloaded version in memory.
        key = served and (served[0].name, served[0].version, [table.name for table in served[1]])
        last = self._last
        if last is None or last[0] != key:
            self._last = last = key, self._make(served)
        return last[1]

    @cached_property
    def _definitions(self) -> dict[str, Json]:
        operations = [operation for _, operation in self._described]
        kinds = {answer.kind for one in operations for answer in (one.answer, *one.more.values())}
        kinds |= {Error, ErrorCode, *(one.body for one in operations)}
        bodies = sorted(kinds - {None, str, dict}, key=lambda kind: kind.__name__)
        return schemas(bodies, strict_json=self._strict_json)

    def _make(self, served: Served) -> Json:
        definitions = self._definitions
        paths: dict[str, Json] = {}
        for route, operation in self._described:
            assert route.operation is not None
            # The id of an operation gets a suffix if its path has a version or a label: the same operation has a path
            # without them, and ids must differ.
            which = "Version" if "{version}" in route.path else "Label" if "{label}" in route.path else ""
            described = {"operationId": route.operation + which} | _described(operation, route.path_format, definitions)
            if route.endpoint is not in_the_core:
                described["description"] = inspect.cleandoc(route.endpoint.__doc__ or "")
            paths.setdefault(route.path_format, {})[route.method.lower()] = described
        document = {
            "openapi": "3.1.0",
            "info": {
                "title": "Embedding server",
                "version": "1",
                "description": _DESCRIPTION,
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
            # Most servers need no token, nor do those whose clients have certificates.
            "security": [{}, {"token": []}],
            "paths": paths,
            "components": {
                "schemas": definitions,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": _TOKEN}},
                "responses": {_name(status): _refusal(status, definitions) for status in ERRORS},
            },
        }
        add_examples(document, served)
        return document


def _described(operation: Operation, path: str, definitions: Mapping[str, Json]) -> Json:
    answers = {200: operation.answer, **operation.more}
    responses: dict[str, Json] = {
        str(status): {"description": answer.about, "content": _content(answer.kind, answer.examples, definitions)}
        for status, answer in answers.items()
    }
    responses |= {str(status): {"$ref": f"#/components/responses/{_name(status)}"} for status in operation.errors}
    described: Json = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": responses,
        "parameters": [*map(_parameter, re.findall(r"{(\w+)}", path)), *map(dict, operation.parameters)],
    }
    if operation.body is not None:
        content = _content(operation.body, operation.examples, definitions)
        # A request may lack its body if the empty object is an example.
        described["requestBody"] = {"required": {} not in operation.examples.values(), "content": content}
    if operation.is_computed:
        about = "The version that computed the answer."
        header = {"required": True, "schema": {"type": "integer"}, "description": about}
        responses["200"]["headers"] = {"X-Model-Version": header}
    if operation.has_binary:
        for body in (described["requestBody"], responses["200"]):
            body["content"]["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    return described


def _name(status: int) -> str:
    return f"Error{status}"


def _refusal(status: int, definitions: Mapping[str, Json]) -> Json:
    about, text = ERRORS[status]
    # The answer to an unexpected exception, with status 500, has no code.
    headers = {CODE_HEADER: {"required": status != 500, "schema": {"$ref": "#/components/schemas/ErrorCode"}}}
    if status == 503:
        wait = "Seconds; sent if the server is overloaded."
        headers["Retry-After"] = {"required": False, "schema": {"type": "integer"}, "description": wait}
    if status == 401:
        headers["WWW-Authenticate"] = {"required": True, "schema": {"type": "string"}}
    content = _content(Error, {"error": {"error": text}}, definitions)
    return {"description": about, "headers": headers, "content": content}


def _parameter(name: str) -> Json:
    examples = {"model": "movielens", "version": 1, "table": "film", "label": "stable"}
    kind = "integer" if name == "version" else "string"
    return {"name": name, "in": "path", "required": True, "schema": {"type": kind}, "example": examples[name]}


def _content(kind: Any, examples: Mapping[str, Any] | None, definitions: Mapping[str, Json]) -> Json:
    if kind is str:
        return {"text/plain": {"schema": {"type": "string"}}}
    if kind is dict:
        return {"application/json": {"schema": {"type": "object"}}}
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    examples = {"example": example_of(schema, definitions)} if examples is None else examples
    return {"application/json": {"schema": schema, "examples": {name: {"value": it} for name, it in examples.items()}}}
