"""Each row of the table of forms, applied to each kind of tensor: the expected kinds are written by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from model_export.adoption.key_graph import FORMS, NotRead
from model_export.adoption.opened_graph import Read, RowRead, SignatureGraph
from model_export.adoption.reading import Reading
from model_export.adoption.roles import Roles
from service.graph.flat_graph import flatten
from service.types import SignatureSpec, TensorSpec

pytestmark = pytest.mark.tf

# The kinds: L layout, K keys, W weights, V vectors, Q their squares, N their norms; C constants.
KINDS = "LKWVQN"
# Op -> (how it is applied to a tensor x, expected kind of the result by kind of x). "!": the op ends the description.
# A kind that is left out can not be the op's input, by its dtype or rank. p has the placeholders of `tensors`.
Apply = Callable[[Any, Any, Any], Any]
MATRIX: dict[str, tuple[Apply, str]] = {
    "Identity": (lambda raw, x, p: raw.Identity(input=x), "L:L K:K W:W V:V Q:Q N:N"),
    "Snapshot": (lambda raw, x, p: raw.Snapshot(input=x), "L:L K:K W:W V:V Q:Q N:N"),
    "StopGradient": (lambda raw, x, p: raw.StopGradient(input=x), "L:L K:K W:W V:V Q:Q N:N"),
    "PreventGradient": (lambda raw, x, p: raw.PreventGradient(input=x), "L:L K:K W:W V:V Q:Q N:N"),
    "Reshape": (lambda raw, x, p: raw.Reshape(tensor=x, shape=[-1]), "L:L K:K W:W V:V Q:Q N:N"),
    "ExpandDims": (lambda raw, x, p: raw.ExpandDims(input=x, axis=1), "L:L K:K W:W V:V Q:Q N:N"),
    "Squeeze": (lambda raw, x, p: raw.Squeeze(input=x, axis=[]), "L:L K:K W:W V:V Q:Q N:N"),
    "GatherV2": (lambda raw, x, p: raw.GatherV2(params=x, indices=p["L"], axis=0), "L:L K:K W:W V:V Q:Q N:N"),
    "GatherNd": (lambda raw, x, p: raw.GatherNd(params=x, indices=p["L"][:, None]), "L:L K:K W:W V:V Q:Q N:N"),
    "Slice": (lambda raw, x, p: raw.Slice(input=p["flat"](x), begin=[0], size=[-1]), "L:L K:K W:W V:V Q:Q N:N"),
    "StridedSlice": (
        lambda raw, x, p: raw.StridedSlice(input=x, begin=[0], end=[1], strides=[1]),
        "L:L K:K W:W V:V Q:Q N:N",
    ),
    "Tile": (lambda raw, x, p: raw.Tile(input=p["flat"](x), multiples=[2]), "L:L K:! W:W V:V Q:! N:N"),
    "BroadcastTo": (lambda raw, x, p: raw.BroadcastTo(input=x, shape=p["size"]), "L:L K:! W:W V:V Q:! N:N"),
    "Pad": (lambda raw, x, p: raw.Pad(input=p["flat"](x), paddings=[[0, 1]]), "L:L K:! W:W V:V Q:! N:!"),
    "PadV2": (
        lambda raw, x, p: raw.PadV2(input=p["flat"](x), paddings=[[0, 1]], constant_values=p["one"](x)),
        "L:L K:! W:W V:V Q:! N:!",
    ),
    "Fill": (lambda raw, x, p: raw.Fill(dims=p["size"], value=p["first"](x)), "L:L K:! W:! V:! Q:! N:!"),
    "Pack": (lambda raw, x, p: raw.Pack(values=[x, x]), "L:L K:! W:! V:! Q:! N:!"),
    "ConcatV2": (lambda raw, x, p: raw.ConcatV2(values=[x, x], axis=0), "L:L K:! W:! V:! Q:! N:!"),
    "Shape": (lambda raw, x, p: raw.Shape(input=x), "L:L K:L W:L V:L Q:L N:L"),
    "Size": (lambda raw, x, p: raw.Size(input=x), "L:L K:L W:L V:L Q:L N:L"),
    "Rank": (lambda raw, x, p: raw.Rank(input=x), "L:L K:L W:L V:L Q:L N:L"),
    "ZerosLike": (lambda raw, x, p: raw.ZerosLike(x=x), "L:L K:K W:L V:L Q:L N:L"),
    "OnesLike": (lambda raw, x, p: raw.OnesLike(x=x), "L:L K:K W:L V:L Q:L N:L"),
    "Where": (lambda raw, x, p: raw.Where(condition=x), "L:L K:L W:L V:! Q:! N:!"),
    "Unique": (lambda raw, x, p: raw.Unique(x=p["flat"](x)).y, "L:L K:K W:! V:! Q:! N:!"),
    "SparseFillEmptyRows": (
        lambda raw, x, p: raw.SparseFillEmptyRows(
            indices=p["indices"], values=x, dense_shape=p["size2"], default_value=p["one"](x)
        ).output_values,
        "L:L K:K W:W V:! Q:! N:!",
    ),
    "RaggedTensorToSparse": (
        lambda raw, x, p: raw.RaggedTensorToSparse(
            rt_nested_splits=[p["L"]], rt_dense_values=x
        ).sparse_values,
        "L:L K:K W:W V:! Q:! N:!",
    ),
    "DynamicPartition": (
        lambda raw, x, p: raw.DynamicPartition(data=x, partitions=p["parts"], num_partitions=2)[0],
        "L:L K:K W:! V:! Q:! N:!",
    ),
    "ParallelDynamicStitch": (
        lambda raw, x, p: raw.ParallelDynamicStitch(indices=[p["L"]], data=[x]),
        "L:! K:! W:! V:V Q:! N:!",
    ),
    "DynamicStitch": (
        lambda raw, x, p: raw.DynamicStitch(indices=[p["L"]], data=[x]), "L:! K:! W:! V:V Q:! N:!"
    ),
    "AsString": (lambda raw, x, p: raw.AsString(input=x), "L:L K:K W:! V:! Q:! N:!"),
    "StringToHashBucketFast": (
        lambda raw, x, p: raw.StringToHashBucketFast(input=raw.AsString(input=x), num_buckets=9), "L:L K:K W:!"
    ),
    "LookupTableFindV2": (
        lambda raw, x, p: raw.LookupTableFindV2(
            table_handle=p["table"], keys=x, default_value=np.int64(0)
        ),
        "K:K",
    ),
    "FloorMod": (lambda raw, x, p: raw.FloorMod(x=x, y=p["one"](x)), "L:L K:K W:! V:! Q:! N:!"),
    "FloorDiv": (lambda raw, x, p: raw.FloorDiv(x=x, y=p["one"](x)), "L:L K:K W:! V:! Q:! N:!"),
    "Cast": (lambda raw, x, p: raw.Cast(x=x, DstT=p["other"](x)), "L:L K:K W:W V:! Q:! N:!"),
    "Add": (lambda raw, x, p: raw.Add(x=x, y=p["one"](x)), "L:L K:K W:W V:! Q:! N:N"),
    "AddV2": (lambda raw, x, p: raw.AddV2(x=x, y=p["one"](x)), "L:L K:K W:W V:! Q:! N:N"),
    "Sub": (lambda raw, x, p: raw.Sub(x=x, y=p["one"](x)), "L:L K:K W:W V:! Q:! N:N"),
    "Mul": (lambda raw, x, p: raw.Mul(x=x, y=p["one"](x)), "L:L K:K W:W V:V Q:! N:N"),
    "RealDiv": (lambda raw, x, p: raw.RealDiv(x=x, y=p["one"](x)), "W:W V:V Q:! N:N"),
    "DivNoNan": (lambda raw, x, p: raw.DivNoNan(x=x, y=p["one"](x)), "W:W V:V Q:! N:N"),
    "Square": (lambda raw, x, p: raw.Square(x=x), "L:L K:! W:W V:Q Q:! N:!"),
    "Pow": (lambda raw, x, p: raw.Pow(x=x, y=p["one"](x)), "L:L K:! W:W V:! Q:! N:!"),
    "Sqrt": (lambda raw, x, p: raw.Sqrt(x=x), "W:W V:! Q:! N:N"),
    "Rsqrt": (lambda raw, x, p: raw.Rsqrt(x=x), "W:W V:! Q:! N:N"),
    "Maximum": (lambda raw, x, p: raw.Maximum(x=x, y=p["one"](x)), "L:L K:K W:W V:! Q:! N:N"),
    "Minimum": (lambda raw, x, p: raw.Minimum(x=x, y=p["one"](x)), "L:L K:K W:W V:! Q:! N:N"),
    "Less": (lambda raw, x, p: raw.Less(x=x, y=p["one"](x)), "L:L K:K W:W V:! Q:! N:N"),
    "LessEqual": (lambda raw, x, p: raw.LessEqual(x=x, y=p["one"](x)), "L:L K:K W:W V:! Q:! N:N"),
    "Greater": (lambda raw, x, p: raw.Greater(x=x, y=p["one"](x)), "L:L K:K W:W V:! Q:! N:N"),
    "GreaterEqual": (lambda raw, x, p: raw.GreaterEqual(x=x, y=p["one"](x)), "L:L K:K W:W V:! Q:! N:N"),
    "Equal": (lambda raw, x, p: raw.Equal(x=x, y=p["one"](x)), "L:L K:K W:W V:! Q:! N:N"),
    "NotEqual": (lambda raw, x, p: raw.NotEqual(x=x, y=p["one"](x)), "L:L K:K W:W V:! Q:! N:N"),
    "LogicalAnd": (lambda raw, x, p: raw.LogicalAnd(x=p["true"](x), y=True), "L:L K:K W:W N:N"),
    "LogicalOr": (lambda raw, x, p: raw.LogicalOr(x=p["true"](x), y=True), "L:L K:K W:W N:N"),
    "LogicalNot": (lambda raw, x, p: raw.LogicalNot(x=p["true"](x)), "L:L K:K W:W N:N"),
    "Select": (lambda raw, x, p: raw.Select(condition=True, x=x, y=x), "L:L K:K W:W V:V Q:! N:N"),
    "SelectV2": (lambda raw, x, p: raw.SelectV2(condition=True, t=x, e=x), "L:L K:K W:W V:V Q:! N:N"),
    "Sum": (lambda raw, x, p: raw.Sum(input=x, axis=0), "L:L K:! W:W V:V Q:N N:!"),
    "Mean": (lambda raw, x, p: raw.Mean(input=x, axis=0), "L:L K:! W:! V:V Q:! N:!"),
    "SegmentSum": (lambda raw, x, p: raw.SegmentSum(data=x, segment_ids=p["L"]), "L:L K:! W:W V:V Q:! N:!"),
    "SegmentMean": (lambda raw, x, p: raw.SegmentMean(data=x, segment_ids=p["L"]), "L:L K:! W:! V:V Q:! N:!"),
    "UnsortedSegmentSum": (
        lambda raw, x, p: raw.UnsortedSegmentSum(data=x, segment_ids=p["L"], num_segments=3),
        "L:L K:! W:W V:V Q:! N:!",
    ),
    **{
        f"SparseSegment{kind}{many}": (
            lambda raw, x, p, op=f"SparseSegment{kind}{many}", more=bool(many): getattr(raw, op)(
                data=x, indices=p["L"], segment_ids=p["L"], **({"num_segments": 3} if more else {})
            ),
            "W:! V:V Q:! N:!",
        )
        for kind in ("Sum", "Mean", "SqrtN")
        for many in ("", "WithNumSegments")
    },
    "Prod": (lambda raw, x, p: raw.Prod(input=x, axis=0), "L:L K:! W:! V:! Q:! N:!"),
    "Max": (lambda raw, x, p: raw.Max(input=x, axis=0), "L:L K:! W:! V:! Q:! N:!"),
    "Min": (lambda raw, x, p: raw.Min(input=x, axis=0), "L:L K:! W:! V:! Q:! N:!"),
    "All": (lambda raw, x, p: raw.All(input=p["true"](x), axis=0), "L:L K:! W:! N:!"),
    "Any": (lambda raw, x, p: raw.Any(input=p["true"](x), axis=0), "L:L K:! W:! N:!"),
    "Range": (lambda raw, x, p: raw.Range(start=p["first"](x), limit=p["one"](x), delta=p["one"](x)), "L:L K:! W:!"),
    "Cumsum": (lambda raw, x, p: raw.Cumsum(x=x, axis=0), "L:L K:! W:! V:! Q:! N:!"),
    "SparseReshape": (
        lambda raw, x, p: raw.SparseReshape(
            input_indices=p["indices"], input_shape=p["size2"], new_shape=x
        ).output_shape,
        "L:L K:!",
    ),
}  # fmt: skip

# Ops after which an element of keys is in another shape, or at another place, than in the input. An element of two such
# tensors may belong to two keys, so that no op may combine them.
MOVED = {
    **dict.fromkeys(("ExpandDims", "Squeeze"), ("input", False)),
    **dict.fromkeys(("GatherV2", "GatherNd", "Slice", "StridedSlice"), ("other", True)),
    **dict.fromkeys(("Unique", "SparseFillEmptyRows", "DynamicPartition"), ("other", False)),
    "RaggedTensorToSparse": ("input", False),
}


@pytest.fixture(scope="module")
def made() -> tuple[dict[tuple[str, str], str], Callable[[], Reading]]:
    """All ops of MATRIX on tensors of each kind, in one graph: (op, kind) -> the tensor; and a new reading of it."""
    from model_export.tensorflow_setup import tf

    found: dict[tuple[str, str], str] = {}
    with tf.Graph().as_default() as graph:
        place = tf.compat.v1.placeholder
        ids = place(tf.int64, [None], "ids")
        splits, weights = place(tf.int64, [None], "splits"), place(tf.float32, [None], "weights")
        rows = place(tf.float32, None, "rows")
        squares = tf.square(rows)
        kinds = {"L": splits, "K": ids, "W": weights, "V": rows, "Q": squares, "N": tf.reduce_sum(squares, 1)}
        helpers = {
            "L": splits,
            "size": tf.shape(splits),
            "size2": tf.concat([tf.shape(splits, out_type=tf.int64), [9]], 0),
            "indices": tf.stack([splits, splits], 1),
            "parts": tf.cast(ids % 2, tf.int32),
            "table": tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(tf.constant([1], tf.int64), tf.constant([1], tf.int64)), 0
            ).resource_handle,
            "flat": lambda x: tf.reshape(x, [-1]),
            "first": lambda x: tf.reshape(x, [-1])[0],
            "one": lambda x: tf.constant(1, x.dtype),
            "true": lambda x: tf.equal(x, tf.constant(1, x.dtype)),
            "other": lambda x: tf.float64 if x.dtype == tf.float32 else tf.int32,
        }
        tensors = dict(kinds)
        for op, (apply, told) in MATRIX.items():
            for kind, _ in (pair.split(":") for pair in told.split()):
                x = tensors[kind]
                helpers["L"] = tf.cast(splits, tf.int32) if op in ("ParallelDynamicStitch", "DynamicStitch") else splits
                tensor = apply(tf.raw_ops, x, helpers)
                assert tensor.op.type == op, (op, tensor.op.type)
                found[op, kind] = tensor.name
    spec = SignatureSpec(
        "s",
        "predict",
        "",
        {
            "ids": TensorSpec("ids", "int64", (None,), tensor_name="ids:0"),
            "splits": TensorSpec("splits", "int64", (None,), tensor_name="splits:0"),
            "weights": TensorSpec("weights", "float32", (None,), tensor_name="weights:0"),
        },
        {},
    )
    flat = flatten(graph.as_graph_def(), found.values())
    read = Read("table", (RowRead("ids:0", "rows:0", 0),))
    opened = SignatureGraph(spec, flat, {}, set(flat.nodes), [read], {}, {}, bool)
    session = tf.compat.v1.Session(graph=graph)
    return found, lambda: Reading(
        opened, read, Roles("ids", "splits", "weights"), lambda tensor: np.asarray(session.run(tensor))
    )


def test_every_row_of_the_table_is_tested() -> None:
    assert FORMS.keys() == MATRIX.keys()


def faults(op: str, tensors: dict[tuple[str, str], str], reading: Reading) -> list[str]:
    """Returns the kinds of tensors for which an op does not have the meaning that MATRIX says."""
    found = []
    for kind, wanted in (pair.split(":") for pair in MATRIX[op][1].split()):
        try:
            value = reading.value(tensors[op, kind])
        except NotRead:
            found += [kind] if wanted != "!" else []
            continue
        is_right = value.kind == wanted
        if is_right and wanted == "K":
            order, is_same_shape = MOVED.get(op, ("input", True))
            is_right = (value.order == "input", value.shape == "input") == (order == "input", is_same_shape)
        found += [] if is_right else [kind]
    return found


@pytest.mark.parametrize("op", MATRIX)
def test_an_op_has_its_meaning_for_each_kind_and_no_other(
    op: str, made: tuple[dict[tuple[str, str], str], Callable[[], Reading]]
) -> None:
    tensors, read = made
    assert faults(op, tensors, read()) == []


# Kinds that a row of the table does not name, and that another rule of the reader refuses, too: a row that named them
# by mistake would permit nothing wrong.
REFUSED_TWICE = {
    # Vectors are only scaled and selected, and their squares only added up.
    **{op: "VQ" for op, form in FORMS.items() if form.rule == "mapped"},
    **dict.fromkeys(("DivNoNan", "Mul", "RealDiv", "Select", "SelectV2", "Square"), "Q"),
    # These two have no such inputs but behind ops that refuse them.
    "StringToHashBucketFast": "W",
    **dict.fromkeys(("LogicalAnd", "LogicalOr", "LogicalNot", "LookupTableFindV2"), ""),
    # One tensor is moved; parts are distributed and put together by rules of their own.
    **dict.fromkeys(("Pack", "ConcatV2", "DynamicPartition", "DynamicStitch", "ParallelDynamicStitch"), "KWVQN"),
    "SparseReshape": "K",
}


@pytest.mark.parametrize("op", MATRIX)
def test_a_broken_row_of_the_table_is_found(
    op: str, made: tuple[dict[tuple[str, str], str], Callable[[], Reading]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks a row in each way: left out, one kind less for each that it names, one kind more for each other."""
    tensors, read = made
    row = FORMS[op]
    named = [pair.split(":") for pair in MATRIX[op][1].split()]
    with monkeypatch.context() as patch:
        patch.delitem(FORMS, op)  # type: ignore[arg-type]
        assert faults(op, tensors, read()) == [kind for kind, wanted in named if wanted != "!"]
    survived = ""
    for kind, _ in named:
        if kind == "L":
            continue
        on = row.on.replace(kind, "") if kind in row.on else row.on + kind
        with monkeypatch.context() as patch:
            patch.setitem(FORMS, op, dataclasses.replace(row, on=on))  # type: ignore[arg-type]
            if not faults(op, tensors, read()):
                survived += kind
    assert survived == REFUSED_TWICE.get(op, "")


def test_keys_of_two_places_are_not_combined() -> None:
    from model_export.tensorflow_setup import tf

    with tf.Graph().as_default() as graph:
        ids = tf.compat.v1.placeholder(tf.int64, [None], "ids")
        splits = tf.compat.v1.placeholder(tf.int64, [None], "splits")
        tf.compat.v1.placeholder(tf.float32, [None, 4], "rows")
        moved = tf.where(ids[1:] > 0, ids[:-1], ids[1:]).name
        back = tf.where(tf.reshape(ids, [-1, 1]) > 0, tf.expand_dims(ids, 1), tf.expand_dims(ids, 1)).name
        same = tf.where(tf.reshape(tf.reshape(ids, [-1]), tf.shape(ids)) > 0, ids, tf.zeros_like(ids)).name
        seven = tf.constant(7, tf.int64)
        filled = tf.where(ids > 0, tf.fill(tf.shape(ids), seven), ids).name
        # None of these holds one constant in the shape of the ids.
        others = [
            tf.where(ids > 0, tensor, ids).name
            for tensor in (
                splits,
                tf.fill(tf.shape(ids[1:]), seven),
                tf.fill(tf.shape(splits), seven),
                tf.fill(tf.shape(ids) + 0, seven),
                tf.fill(tf.shape(ids), splits[0]),
                tf.fill(tf.shape(ids), seven)[:1],
            )
        ]
    inputs = {name: TensorSpec(name, "int64", (None,), tensor_name=f"{name}:0") for name in ("ids", "splits")}
    flat = flatten(graph.as_graph_def(), [moved, back, same, filled, *others])
    read = Read("table", (RowRead("ids:0", "rows:0", 0),))
    opened = SignatureGraph(
        SignatureSpec("s", "predict", "", inputs, {}), flat, {}, set(flat.nodes), [read], {}, {}, bool
    )
    session = tf.compat.v1.Session(graph=graph)
    reading = Reading(opened, read, Roles("ids", "splits"), lambda tensor: np.asarray(session.run(tensor)))
    assert reading.value(same).kind == reading.value(filled).kind == "K"
    for tensor in others:
        with pytest.raises(NotRead, match="SelectV2 combines ids with the layout"):
            reading.value(tensor)
    for tensor in (moved, back):
        with pytest.raises(NotRead, match="the id of one place with that of another"):
            reading.value(tensor)
