"""Servables without a model, for tests of the code that holds and exchanges servables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from service.types import Array, ModelRef, SignatureSpec, TableCounts, Tensors, TensorSpec
from service.versions.counts import FeatureCounts, SampledRows
from service.versions.servable import Servable
from service.wire.predict_proto import decode_inputs, decode_request, decode_response, encode_request, encode_response


class FakeBackend:
    """A backend that opens nothing, and counts the calls of close()."""

    closed = 0

    def close(self) -> None:
        """Counts the call."""
        self.closed += 1


class FakeNative:
    """A compiled servable that answers Predict requests with the outputs of a function, and keeps what was asked.

    runs: signature, inputs and output filter of each request. refs: the model and version that each request named.
    others: method and bytes of each request that is no Predict.
    """

    num_holders = 0

    def __init__(self, outputs: Callable[[Tensors], Mapping[str, Array]] = lambda inputs: {}) -> None:
        self.runs: list[tuple[str, dict[str, Array], tuple[str, ...]]] = []
        self.refs: list[ModelRef] = []
        self.others: list[tuple[str, bytes]] = []
        self._outputs = outputs

    def answer(self, request: bytes, method: str = "Predict") -> bytes:
        """Records a request; returns the PredictResponse of a PredictRequest, and nothing for another method."""
        if method != "Predict":
            self.others.append((method, request))
            return b""
        parsed = decode_request(request)
        inputs = decode_inputs(parsed)
        self.refs.append(parsed.ref)
        self.runs.append((parsed.signature_name, inputs, parsed.output_filter))
        found = self._outputs(inputs)
        chosen = {name: found[name] for name in found if not parsed.output_filter or name in parsed.output_filter}
        return encode_response(chosen, model=parsed.ref.name, version=1, signature_name="")

    def run(self, signature: str, inputs: Tensors, outputs: tuple[str, ...] = ()) -> dict[str, Array]:
        """Runs a signature of model "m" by answer(), as NativeServable says."""
        return decode_response(self.answer(encode_request("m", signature, inputs, outputs)))

    def table_counts(self) -> Mapping[str, TableCounts]:
        """Returns no counts."""
        return {}

    def feature_counts(self) -> FeatureCounts:
        """Returns no counts."""
        return {}

    def hot_rows(self, table: str, most: int) -> SampledRows | None:
        """Returns None: no ids are sampled."""
        return None

    def on_tables(self, tables: Mapping[str, Any]) -> FakeNative:
        """Returns this object, which reads no tables."""
        return self


def predict_spec(name: str = "serving_default", **inputs: TensorSpec) -> SignatureSpec:
    """Returns a predict signature with outputs y and z, and the input x unless others are given."""
    return SignatureSpec(
        name=name,
        kind="predict",
        method_name="tensorflow/serving/predict",
        inputs=inputs or {"x": TensorSpec("x", "float32", (None,))},
        outputs={n: TensorSpec(n, "float32", (None,)) for n in ("y", "z")},
    )


def regress_spec(name: str = "serving_default") -> SignatureSpec:
    """Returns a signature that fits Regress."""
    return SignatureSpec(
        name=name,
        kind="predict",
        method_name="tensorflow/serving/regress",
        inputs={"inputs": TensorSpec("inputs", "string", (None,))},
        outputs={"outputs": TensorSpec("outputs", "float32", (None, 1))},
    )


def servable(version: int = 1, name: str = "m", backend: Any = None, **more: Any) -> Servable:
    """Returns a servable with one predict signature."""
    spec = predict_spec()
    signatures = more.pop("signatures", {spec.name: spec})
    return Servable(name, version, signatures, {spec.name: backend or FakeBackend()}, **more)
