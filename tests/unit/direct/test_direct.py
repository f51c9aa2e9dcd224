"""The direct path answers what the general path does, to the byte, and leaves everything else to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service.direct.predict import DirectPredict

from service.codecs.protos import message_class
from service.core.engine import Engine
from service.core.errors import ServiceError
from service.core.registry import Registry
from service.core.types import ModelRef, TableCounts
from service.transports.grpc.methods import service_methods
from tests.conftest import RecordingObserver, serving
from tests.toy_policies import write_policy_model

PREDICT = "/tensorflow.serving.PredictionService/Predict"
INT64, INT32, FLOAT, STRING = 9, 3, 1, 7
# Features of both toy models' `lookup` by the shape of what they are sent.
ONE = ("user", "one_negative", "one_clamp")
RAGGED = ("tags", "tags_sum", "tags_sqrtn", "drop_negative", "clamp", "default", "positive", "words_or_rows")
SEQUENCES = ("path", "path_default")


@dataclass(frozen=True)
class Both:
    """Both paths over one model."""

    engine: Engine
    registry: Registry
    predict_directly: DirectPredict
    model: str

    def general(self, data: bytes, as_content: bool) -> bytes | None:
        """Returns the general path's answer, None for an error."""
        try:
            return service_methods(self.engine, as_content=as_content)[PREDICT](data, None)
        except ServiceError:
            return None

    def direct(self, data: bytes, as_content: bool) -> bytes | None:
        """Returns the direct path's answer, None where it leaves the request to the general path."""
        return self.predict_directly(data, None, as_content=as_content)

    def counts(self) -> dict[str, TableCounts]:
        """Returns what was read of each table so far."""
        with self.registry.lease(ModelRef(self.model)) as servable:
            return dict(servable.table_counts())


@pytest.fixture(scope="module")
def models(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Both]:
    policies = tmp_path_factory.mktemp("direct") / "policies"
    write_policy_model(policies / "1")
    models = {}
    for name, base in (("toy", toy_model), ("policies", policies)):
        registry = serving(base, name=name)
        engine = Engine(registry, RecordingObserver())
        models[name] = Both(engine, registry, DirectPredict(engine, "grpc"), name)
    return models


def tensor(array: np.ndarray, dtype: int, *, is_content: bool) -> Any:
    """Returns a TensorProto of rank 1."""
    message = message_class("tensorflow.TensorProto")(dtype=dtype)
    message.tensor_shape.dim.add(size=array.size)
    if is_content:
        message.tensor_content = array.astype({INT64: "<i8", INT32: "<i4", FLOAT: "<f4"}[dtype]).tobytes()
    else:
        getattr(message, {INT64: "int64_val", INT32: "int_val", FLOAT: "float_val"}[dtype]).extend(array.tolist())
    return message


def request(model: str, signature: str, inputs: dict[str, Any]) -> bytes:
    """Returns a PredictRequest; its inputs are written in the order of the dict."""
    message = message_class("tensorflow.serving.PredictRequest")()
    message.model_spec.name, message.model_spec.signature_name = model, signature
    data: bytes = message.SerializeToString()
    for name, value in inputs.items():
        one = message_class("tensorflow.serving.PredictRequest")()
        one.inputs[name].CopyFrom(value)
        data += one.SerializeToString()
    return data


@st.composite
def requests(draw: st.DrawFn, *, worst: int) -> tuple[str, bytes]:
    """Draws a model and a request of it, with ids from -worst to worst beyond what tables hold."""
    model = draw(st.sampled_from(["toy", "policies"]))
    signature = draw(st.sampled_from(["lookup", "lookup", "lookup_tpu_tensor_core"]))
    known = {"toy": ("user", "tags", "tags_sum", "tags_sqrtn"), "policies": (*ONE[1:], *RAGGED[3:], *SEQUENCES)}[model]
    if signature == "lookup_tpu_tensor_core":
        known = {"toy": ("user", "tags", "tags_sum"), "policies": ("clamp", "default")}[model]
    features = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
    rows = draw(st.integers(1, 5))
    ids_dtype = INT64 if signature == "lookup" else INT32
    ids = st.integers(-worst, 3 + worst)
    inputs: dict[str, Any] = {}
    for feature in features:
        contents = draw(st.lists(st.booleans(), min_size=3, max_size=3))
        if feature in ONE:
            values = draw(st.lists(ids, min_size=rows, max_size=rows))
            inputs[feature] = tensor(np.array(values, np.int64), ids_dtype, is_content=contents[0])
            continue
        lengths = draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows))
        splits = np.r_[0, np.cumsum(lengths)]
        values = draw(st.lists(ids, min_size=sum(lengths), max_size=sum(lengths)))
        inputs[f"{feature}__values"] = tensor(np.array(values, np.int64), ids_dtype, is_content=contents[0])
        inputs[f"{feature}__row_splits"] = tensor(splits, INT64, is_content=contents[1])
        if feature not in SEQUENCES and draw(st.booleans()):
            weights = draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=len(values), max_size=len(values)))
            inputs[f"{feature}__weights"] = tensor(np.array(weights), FLOAT, is_content=contents[2])
    order = draw(st.permutations(list(inputs)))
    return model, request(model, signature, {name: inputs[name] for name in order})


anything = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@anything
@given(drawn=requests(worst=0), as_content=st.booleans())
def test_good_requests_are_answered_directly(
    models: dict[str, Both], drawn: tuple[str, bytes], as_content: bool
) -> None:
    model, data = drawn
    expected = models[model].general(data, as_content)
    # A row of more ids than the padded lookup takes is the general path's to refuse.
    assert models[model].direct(data, as_content) == expected


@anything
@given(drawn=requests(worst=3), as_content=st.booleans())
def test_bad_ids_are_answered_as_the_general_path_does_or_left_to_it(
    models: dict[str, Both], drawn: tuple[str, bytes], as_content: bool
) -> None:
    model, data = drawn
    both = models[model]
    before = both.counts()
    answer = both.direct(data, as_content)
    between = both.counts()
    assert answer == both.general(data, as_content)
    assert answer is None or added(before, between) == added(between, both.counts())


def added(before: dict[str, TableCounts], after: dict[str, TableCounts]) -> dict[str, list[int]]:
    """Returns what was counted in between."""
    return {table: [b - a for a, b in zip(before[table], after[table], strict=True)] for table in after}


@anything
@given(
    drawn=requests(worst=1),
    flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 500),
)
def test_mutated_bytes_never_get_another_answer(
    models: dict[str, Both], drawn: tuple[str, bytes], flips: list[tuple[int, int]], cut: int
) -> None:
    model, data = drawn
    mutated = bytearray(data)
    for position, byte in flips:
        mutated[position % len(mutated)] = byte
    data = bytes(mutated[: cut or None])
    answer = models[model].direct(data, False)
    assert answer is None or answer == models[model].general(data, False)


def test_a_request_is_counted_once_by_either_path(models: dict[str, Both]) -> None:
    both = models["toy"]
    observed = RecordingObserver()
    engine = Engine(both.registry, observed)
    one = tensor(np.array([1]), INT64, is_content=False)
    predict = service_methods(engine, predict_directly=DirectPredict(engine, "grpc"))[PREDICT]
    plain = request("toy", "lookup", {"user": one})
    assert DirectPredict(engine, "grpc")(plain, None, as_content=False) == predict(plain, None)
    # An output_filter is not plain.
    filtered = message_class("tensorflow.serving.PredictRequest").FromString(plain)
    filtered.output_filter.append("user")
    assert predict(filtered.SerializeToString(), None) == predict(plain, None)
    assert [(call["method"], call["signature"], call["rows"]) for call in observed.finished_requests] == [
        ("Predict", "lookup", 1)
    ] * 4


def test_a_deadline_that_has_passed_is_left_to_the_general_path(models: dict[str, Both]) -> None:
    both = models["toy"]
    plain = request("toy", "lookup", {"user": tensor(np.array([1]), INT64, is_content=False)})
    assert both.predict_directly(plain, both.engine.clock() - 1.0, as_content=False) is None
    assert both.predict_directly(plain, both.engine.clock() + 60.0, as_content=False) is not None


def test_what_is_not_served_is_left_to_the_general_path(models: dict[str, Both]) -> None:
    one = {"user": tensor(np.array([1]), INT64, is_content=False)}
    for data in (
        request("nobody", "lookup", one),
        request("toy", "none_such", one),
        request("toy", "serving_default", one),
        request("x" * 2000, "lookup", one),
        b"",
        b"\x0a",
    ):
        assert models["toy"].direct(data, False) is None


def test_a_large_answer_is_not_quick(models: dict[str, Both]) -> None:
    both = models["toy"]
    # Rows of two floats; what is not asked for does not count.
    many, few = (
        request("toy", "lookup", {"user": tensor(np.zeros(rows, np.int64), INT64, is_content=False)})
        for rows in (530_000, 520_000)
    )
    assert both.predict_directly(many, None, as_content=False, may_wait=False) is None
    assert both.predict_directly(many, None, as_content=False) == both.general(many, False)
    assert both.predict_directly(few, None, as_content=False, may_wait=False) == both.general(few, False)
