"""Writes the models on which TensorFlow Serving's contract is checked; their answers are easy to compute by hand.

half: x / 2 + 2, with a signature of every kind. It has versions 1 and 2; version 1 adds 100.
kinds: one signature per dtype, which returns its input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PREDICT = "tensorflow/serving/predict"
CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"
DTYPES = (
    "bool",
    "complex64",
    "complex128",
    "bfloat16",
    "half",
    "float",
    "double",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "string",
)

Signatures = dict[str, Any]


def write_half(tf: Any, folder: Path, *, added: float = 0.0) -> None:
    """Writes a version of the model "half"; `added` is added to its answers."""

    def build(v1: Any) -> Signatures:
        x = v1.placeholder("float32", [None, 1], name="x")
        y = tf.identity(x * 0.5 + 2.0 + added, name="y")
        k = v1.placeholder("float32", [], name="k")
        a, b = (v1.placeholder("float32", None, name=name) for name in "ab")
        examples = v1.placeholder("string", None, name="tf_example")
        parsed = v1.parse_example(examples, {"x": tf.io.FixedLenFeature([1], "float32")})["x"]
        halves = parsed * 0.5 + 2.0 + added
        both = tf.concat([halves, parsed], 1)
        names = tf.tile(tf.constant([["half", "all"]]), [tf.shape(parsed)[0], 1])
        matrix = v1.placeholder("float32", [None, None], name="m")
        text = v1.placeholder("string", None, name="text")
        seven = tf.constant(7.0)
        given: Signatures = {
            "serving_default": sign(tf, PREDICT, {"x": x}, {"y": y}),
            "scaled": sign(tf, PREDICT, {"x": x, "k": k}, {"y": tf.multiply(x, k)}),
            "two": sign(tf, PREDICT, {"a": a, "b": b}, {"sum": a + b, "difference": a - b}),
            "constant": sign(tf, PREDICT, {}, {"seven": seven}),
            "scalar": sign(tf, PREDICT, {"x": x}, {"total": tf.reduce_sum(x)}),
            "uneven": sign(tf, PREDICT, {"x": x}, {"once": tf.identity(x), "twice": tf.concat([x, x], 0)}),
            "product": sign(tf, PREDICT, {"m": matrix}, {"p": tf.matmul(matrix, tf.constant([[1.0], [2.0]]))}),
            "texts": sign(tf, PREDICT, {"text": text}, {"plain": tf.identity(text), "raw_bytes": tf.identity(text)}),
            "classify": sign(tf, CLASSIFY, {"inputs": examples}, {"classes": names, "scores": both}),
            "scores": sign(tf, PREDICT, {"inputs": examples}, {"scores": both}),
            "classes": sign(tf, CLASSIFY, {"inputs": examples}, {"classes": names}),
            "regress": sign(tf, REGRESS, {"inputs": examples}, {"outputs": halves}),
            "regress_flat": sign(tf, REGRESS, {"inputs": examples}, {"outputs": tf.reshape(parsed, [-1])}),
            "regress_floats": sign(tf, REGRESS, {"inputs": x}, {"outputs": y}),
            "regress_wide": sign(tf, REGRESS, {"inputs": examples}, {"outputs": both}),
            "regress_once": sign(tf, REGRESS, {"inputs": examples}, {"outputs": seven[None]}),
            "regress_text": sign(tf, REGRESS, {"inputs": examples}, {"outputs": names[:, :1]}),
            "classify_flat": sign(tf, CLASSIFY, {"inputs": examples}, {"scores": tf.reshape(parsed, [-1])}),
            "classify_numbers": sign(tf, CLASSIFY, {"inputs": examples}, {"classes": both}),
            "classify_texts": sign(tf, CLASSIFY, {"inputs": examples}, {"scores": names}),
            "classify_once": sign(tf, CLASSIFY, {"inputs": examples}, {"scores": tf.constant([[1.0]])}),
            "classify_uneven": sign(tf, CLASSIFY, {"inputs": examples}, {"classes": names, "scores": halves}),
        }
        given["scaled"].defaults["k"].CopyFrom(tf.make_tensor_proto(10.0))
        return given

    _write(tf, folder, build)


def write_kinds(tf: Any, folder: Path) -> None:
    """Writes the one version of model "kinds"."""

    def build(v1: Any) -> Signatures:
        given = {}
        for dtype in DTYPES:
            x = v1.placeholder(dtype, None, name=f"x_{dtype}")
            given[dtype] = sign(tf, PREDICT, {"x": x}, {"y": tf.identity(x)})
        return given

    _write(tf, folder, build)


def sign(tf: Any, method: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    """Returns a SignatureDef over the tensors of a graph."""
    info = tf.compat.v1.saved_model.build_tensor_info
    return tf.compat.v1.saved_model.build_signature_def(
        {name: info(tensor) for name, tensor in inputs.items()},
        {name: info(tensor) for name, tensor in outputs.items()},
        method,
    )


def _write(tf: Any, folder: Path, build: Callable[[Any], Signatures]) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, ["serve"], build(v1))
        builder.save()
