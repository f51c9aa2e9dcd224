"""Adoption reads graphs: lookups are found, and keys become rows, as TensorFlow computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.foreign.models import all_models
from loadtest.foreign.random_building import constructed
from loadtest.foreign.random_models import Construction, Feature, Table
from model_export.adoption.key_graph import FORMS, Fixed, Hashed, Known, NotRead, Shifted, Within
from model_export.errors import ExportError
from service.artifact.hashes import fingerprint64
from service.artifact.manifest import LookupFeature, SignatureEntry, VocabularyEntry
from service.core.native_servable import compile_native
from service.graph.flat_graph import flatten
from service.loading.loader import ServableLoader
from service.types import Array, SignatureSpec, TensorSpec
from tests.toy_model import manifest_of
from tests.unit.model_export.late import Late, late

with late():
    from model_export.adoption.discovery import Discovery, discover
    from model_export.adoption.key_evaluation import Evaluation, KeyFunction
    from model_export.adoption.reading import Reading
    from model_export.adoption.roles import Roles
    from model_export.answers.opened_graph import Read, RowRead, SignatureGraph

pytestmark = pytest.mark.tf

tf = Late("loadtest.foreign.frameworks", "tf")
adopt = Late("model_export.adoption.adopt", "adopt")
open_signatures = Late("model_export.graphs.signature_runner", "open_signatures")

# The kinds: L layout, K keys, W weights, V vectors, Q their squares, N their norms; C constants.
# Op -> (how it is applied to a tensor x, expected kind of the result by kind of x). "!": the op ends the description.
# A kind that is left out can not be the op's input, by its dtype or rank. p has the placeholders of `tensors`.
Apply = Callable[[Any, Any, Any], Any]


def alike(ops: str, told: str, call: Apply) -> dict[str, tuple[Apply, str]]:
    """Returns rows of ops that are applied in one way and have one expected kind; call takes the op in place of raw."""
    return {op: (lambda raw, x, p, op=op: call(getattr(raw, op), x, p), told) for op in ops.split()}


MATRIX: dict[str, tuple[Apply, str]] = {
    **alike("Identity Snapshot StopGradient PreventGradient", "L:L K:K W:W V:V Q:Q N:N", lambda op, x, p: op(input=x)),
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
    **alike("Shape Size Rank", "L:L K:L W:L V:L Q:L N:L", lambda op, x, p: op(input=x)),
    **alike("ZerosLike OnesLike", "L:L K:K W:L V:L Q:L N:L", lambda op, x, p: op(x=x)),
    "Where": (lambda raw, x, p: raw.Where(condition=x), "L:L K:L W:L V:! Q:! N:!"),
    "Unique": (lambda raw, x, p: raw.Unique(x=p["flat"](x)).y, "L:L K:K W:! V:! Q:! N:!"),
    "SparseFillEmptyRows": (
        lambda raw, x, p: (
            raw.SparseFillEmptyRows(
                indices=p["indices"], values=x, dense_shape=p["size2"], default_value=p["one"](x)
            ).output_values
        ),
        "L:L K:K W:W V:! Q:! N:!",
    ),
    "RaggedTensorToSparse": (
        lambda raw, x, p: raw.RaggedTensorToSparse(rt_nested_splits=[p["L"]], rt_dense_values=x).sparse_values,
        "L:L K:K W:W V:! Q:! N:!",
    ),
    "DynamicPartition": (
        lambda raw, x, p: raw.DynamicPartition(data=x, partitions=p["parts"], num_partitions=2)[0],
        "L:L K:K W:! V:! Q:! N:!",
    ),
    **alike(
        "ParallelDynamicStitch DynamicStitch",
        "L:! K:! W:! V:V Q:! N:!",
        lambda op, x, p: op(indices=[p["L"]], data=[x]),
    ),
    "AsString": (lambda raw, x, p: raw.AsString(input=x), "L:! K:K W:! V:! Q:! N:!"),
    "StringToHashBucketFast": (
        lambda raw, x, p: raw.StringToHashBucketFast(input=raw.AsString(input=x), num_buckets=9),
        "L:! K:K W:!",
    ),
    "LookupTableFindV2": (
        lambda raw, x, p: raw.LookupTableFindV2(table_handle=p["table"], keys=x, default_value=np.int64(0)),
        "K:K",
    ),
    "Cast": (lambda raw, x, p: raw.Cast(x=x, DstT=p["other"](x)), "L:L K:K W:W V:! Q:! N:!"),
    **{
        op: row
        for ops, told in (
            ("FloorMod FloorDiv", "L:! K:K W:! V:! Q:! N:!"),
            ("Add AddV2 Sub", "L:L K:K W:W V:! Q:! N:N"),
            ("Maximum Minimum Less LessEqual Greater GreaterEqual Equal NotEqual", "L:L K:K W:W V:! Q:! N:N"),
            ("Mul", "L:L K:K W:W V:V Q:! N:N"),
            ("RealDiv DivNoNan", "W:W V:V Q:! N:N"),
            ("Pow", "L:L K:! W:W V:! Q:! N:!"),
        )
        for op, row in alike(ops, told, lambda op, x, p: op(x=x, y=p["one"](x))).items()
    },
    "Square": (lambda raw, x, p: raw.Square(x=x), "L:L K:! W:W V:Q Q:! N:!"),
    **alike("Sqrt Rsqrt", "W:W V:! Q:! N:N", lambda op, x, p: op(x=x)),
    **alike("LogicalAnd LogicalOr", "L:L K:K W:W N:N", lambda op, x, p: op(x=p["true"](x), y=True)),
    "LogicalNot": (lambda raw, x, p: raw.LogicalNot(x=p["true"](x)), "L:L K:K W:W N:N"),
    "Select": (lambda raw, x, p: raw.Select(condition=True, x=x, y=raw.ZerosLike(x=x)), "L:L K:K W:W V:V Q:! N:N"),
    "SelectV2": (lambda raw, x, p: raw.SelectV2(condition=True, t=x, e=x), "L:L K:K W:W V:! Q:! N:N"),
    "Sum": (lambda raw, x, p: raw.Sum(input=x, axis=0), "L:L K:! W:! V:V Q:N N:!"),
    "Mean": (lambda raw, x, p: raw.Mean(input=x, axis=0), "L:L K:! W:! V:V Q:! N:!"),
    "SegmentSum": (lambda raw, x, p: raw.SegmentSum(data=x, segment_ids=p["L"]), "L:L K:! W:W V:V Q:! N:!"),
    "SegmentMean": (lambda raw, x, p: raw.SegmentMean(data=x, segment_ids=p["L"]), "L:L K:! W:! V:V Q:! N:!"),
    "UnsortedSegmentSum": (
        lambda raw, x, p: raw.UnsortedSegmentSum(data=x, segment_ids=p["L"], num_segments=3),
        "L:L K:! W:W V:V Q:! N:!",
    ),
    **alike(
        "SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN",
        "W:! V:V Q:! N:!",
        lambda op, x, p: op(data=x, indices=p["L"], segment_ids=p["L"]),
    ),
    **alike(
        "SparseSegmentSumWithNumSegments SparseSegmentMeanWithNumSegments SparseSegmentSqrtNWithNumSegments",
        "W:! V:V Q:! N:!",
        lambda op, x, p: op(data=x, indices=p["L"], segment_ids=p["L"], num_segments=3),
    ),
    **alike("Prod Max Min", "L:L K:! W:! V:! Q:! N:!", lambda op, x, p: op(input=x, axis=0)),
    **alike("All Any", "L:L K:! W:! N:!", lambda op, x, p: op(input=p["true"](x), axis=0)),
    "Range": (lambda raw, x, p: raw.Range(start=p["first"](x), limit=p["one"](x), delta=p["one"](x)), "L:L K:! W:!"),
    "Cumsum": (lambda raw, x, p: raw.Cumsum(x=x, axis=0), "L:L K:! W:! V:! Q:! N:!"),
    "SparseReshape": (
        lambda raw, x, p: (
            raw.SparseReshape(input_indices=p["indices"], input_shape=p["size2"], new_shape=x).output_shape
        ),
        "L:L K:!",
    ),
}

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


@pytest.mark.parametrize("op", MATRIX)
def test_an_op_has_its_meaning_for_each_kind_and_no_other(
    op: str, made: tuple[dict[tuple[str, str], str], Callable[[], Reading]]
) -> None:
    tensors, read = made
    reading, faults = read(), []
    for kind, wanted in (pair.split(":") for pair in MATRIX[op][1].split()):
        try:
            value = reading.value(tensors[op, kind])
        except NotRead:
            faults += [kind] if wanted != "!" else []
            continue
        is_right = value.kind == wanted
        if is_right and wanted == "K":
            order, is_same_shape = MOVED.get(op, ("input", True))
            is_right = (value.order == "input", value.shape == "input") == (order == "input", is_same_shape)
        faults += [] if is_right else [kind]
    assert faults == []


def test_keys_of_two_places_are_not_combined() -> None:
    with tf.Graph().as_default() as graph:
        ids = tf.compat.v1.placeholder(tf.int64, [None], "ids")
        splits = tf.compat.v1.placeholder(tf.int64, [None], "splits")
        tf.compat.v1.placeholder(tf.float32, [None, 4], "rows")
        moved = tf.where(ids[1:] > 0, ids[:-1], ids[1:]).name
        one, two = tf.constant([1]), tf.constant([2])
        ends = [tf.raw_ops.StridedSlice(input=ids, begin=one, end=two, strides=one, end_mask=mask) for mask in (0, 1)]
        masked = tf.where(ends[0] > 0, ends[1], ends[1]).name
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
    flat = flatten(graph.as_graph_def(), [moved, masked, back, same, filled, *others])
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
    for tensor in (moved, masked, back):
        with pytest.raises(NotRead, match="the id of one place with that of another"):
            reading.value(tensor)


def discovered(folder: Path, name: str) -> Discovery:
    """Builds a zoo model, and returns what discovery finds in it."""
    tf.found()  # the import chooses the Keras of this process, before the builder imports one
    all_models()[name].build(folder / "1")
    return discover(folder / "1")


def entries(found: Discovery) -> dict[str, SignatureEntry]:
    """Returns the entries of all signatures."""
    return {one.name: one.entry for one in found.signatures}


def ragged(ids: str, splits: str, output: str, **fields: Any) -> LookupFeature:
    """Returns a combined feature."""
    return LookupFeature(ids, splits, output=output, **fields)


def test_outputs_side_by_side_and_means_that_end_early_are_described(tmp_path: Path) -> None:
    found = discovered(tmp_path, "peer")
    assert sorted(found.tables.values()) == ["item", "tag", "user"]
    signatures = entries(found)
    assert {name: entry.kind for name, entry in signatures.items()} == {
        "w1": "lookup",
        "w2": "lookup",
        "w4": "lookup",
        "w5": "predict",
    }
    assert signatures["w1"].concatenated == {"emb": ("user", "item", "tag")}
    order = {"trailing_empty_rows": "cut", "summation": "segment_mean"}
    mean = ragged("tag_values", "tag_splits", "tag_emb", combiner="mean", **order)
    assert mean in signatures["w2"].features.values()
    # The dense layers of w5 read the vectors of the same feature.
    assert any(feature.row_splits == "tag_splits" for feature in signatures["w5"].features.values())
    assert all(one.is_exact for one in found.signatures)


@pytest.mark.parametrize(
    ("name", "read", "expected"),
    [
        ("module_ragged_mean", "tag", {"combiner": "mean", "on_empty_row": "nan"}),
        ("module_ragged_sum", "tag", {"combiner": "sum"}),
        ("module_segment_sum", "tag", {"combiner": "sum", "trailing_empty_rows": "cut", "summation": "four_lanes"}),
        ("module_unsorted_segment_mean", "tag", {"combiner": "mean"}),
    ],
)
def test_policies_are_found_by_trying(tmp_path: Path, name: str, read: str, expected: dict[str, Any]) -> None:
    has_policies(discovered(tmp_path, name), read, expected)


@pytest.mark.parametrize(
    ("combiner", "expected"),
    [
        ("safe_default_mean", {"combiner": "mean", "on_bad_id": "drop_negative", "on_empty_row": "default_row"}),
        ("safe_sum", {"combiner": "sum", "on_bad_id": "drop_negative", "summation": "blocks_of_8"}),
    ],
)
def test_policies_of_a_safe_lookup_are_found_by_trying(tmp_path: Path, combiner: str, expected: dict[str, Any]) -> None:
    # The models of the zoo have six such features each.
    tag, table = Feature("tag", "int64", "ragged", (), combiner, "t"), Table("t", 500, 16)
    features = (tag, replace(tag, name="weighted", weights=True))
    constructed(Construction("safe", "module", features, (table,), "none")).build(tmp_path / "1")
    has_policies(discover(tmp_path / "1"), "tag", expected)


def has_policies(found: Discovery, read: str, expected: dict[str, Any]) -> None:
    """Fails if a feature of serving_default has other fields than expected, or if a description is not exact."""
    feature = entries(found)["serving_default"].features[read]
    for field, value in expected.items():
        assert getattr(feature, field) == value, field
    assert all(one.is_exact for one in found.signatures)


def test_a_vocabulary_of_a_file_is_taken_from_the_graph(tmp_path: Path) -> None:
    found = discovered(tmp_path, "keyed_by_file_with_buckets")
    (feature,) = found.features.values()
    assert feature.keys is not None and len(feature.keys.lines) == feature.keys.entry.size == 800
    assert (feature.keys.entry.first_id, feature.keys.entry.num_oov_buckets) == (0, 7)


def test_hashed_keys_need_no_file_unless_the_graph_changes_them_first(tmp_path: Path) -> None:
    found = discovered(tmp_path / "plain", "hashed_fast")
    (feature,) = found.features.values()
    assert feature.keys is not None and feature.keys.lines == ()
    assert feature.keys.entry == VocabularyEntry("", 0, num_oov_buckets=800)
    assert entries(found)["first"].kind == "lookup"
    lowered = discovered(tmp_path / "lower", "hashed_fast_of_lower_case")
    assert {entry.kind for entry in entries(lowered).values()} == {"predict"}
    assert not lowered.features


def test_a_variable_in_parts_is_one_table(tmp_path: Path) -> None:
    found = discovered(tmp_path, "session_partitioned_div")
    assert list(found.tables.values()) == ["user_rows"]
    assert entries(found)["serving_default"].kind == "lookup"


def test_what_is_no_lookup_is_told_with_a_reason(tmp_path: Path) -> None:
    found = discovered(tmp_path, "module_ragged_max")
    reasons = {one.name: one.reason for one in found.signatures}
    assert reasons["serving_default"] == "output 'tag_vector' is computed from looked-up rows by UnsortedSegmentMax"


def test_a_model_without_tables_is_refused_with_the_matrices_that_it_has(tmp_path: Path) -> None:
    class Dense(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.kernel = tf.Variable(tf.ones((3, 2)), name="kernel")

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])  # type: ignore[untyped-decorator]
        def score(self, x: Any) -> dict[str, Any]:
            return {"y": x @ self.kernel}

    model = Dense()
    tf.saved_model.save(model, str(tmp_path / "1"), signatures={"serving_default": model.score})
    with pytest.raises(ExportError, match=r"nothing to look up(.|\n)*kernel\S*  \[3, 2\] float32"):
        discover(tmp_path / "1")


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_a_matrix_without_rows_or_columns_is_no_table(tmp_path: Path, shape: tuple[int, int]) -> None:
    module = tf.Module()
    module.empty, module.full = tf.Variable(tf.zeros(shape)), tf.Variable(tf.ones((3, 2)))
    specs = [tf.TensorSpec([None], tf.int64, "item")]
    signatures = {
        "empty": tf.function(lambda item: {"rows": tf.gather(module.empty, item)}, input_signature=specs),
        "full": tf.function(lambda item: {"rows": tf.gather(module.full, item)}, input_signature=specs),
    }
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=signatures)
    found = discover(tmp_path / "1")
    assert len(found.tables) == 1 and {s.name: s.entry.kind for s in found.signatures} == {
        "empty": "predict",
        "full": "lookup",
    }


V = 200
LIMITS = {"int64": (-(2**63), 2**63 - 1), "int32": (-(2**31), 2**31 - 1)}
EDGES = (0, 1, 2, 7, 50, 100, 199, 200, 201, 417, 1000, 2**31, 2**32 + 5, 2**40 + 1)


class Graph:
    """A graph of one placeholder of keys, with the function that computes rows from them.

    Args:
      build: takes TensorFlow and the tensor of keys, returns the tensor of rows.
    """

    def __init__(self, build: Callable[[Any, Any], Any], dtype: str) -> None:
        self.dtype = dtype
        with tf.Graph().as_default() as graph:
            keys = tf.compat.v1.placeholder(tf.as_dtype(dtype), [None], "keys")
            self.rows = tf.identity(build(tf, keys), "rows").name
            self.session = tf.compat.v1.Session(graph=graph)
            self.session.run(tf.compat.v1.tables_initializer())
        flat = flatten(graph.as_graph_def(), [self.rows])
        self.function = KeyFunction(flat, "keys:0", dtype, self._is_constant, self.session.run, self._table)
        self._flat = flat

    def _is_constant(self, tensor: str) -> bool:
        return "keys" not in self._flat.ancestors([tensor])

    def _table(self, handle: str) -> tuple[Array, Array]:
        node = self.session.graph.get_operation_by_name(handle.partition(":")[0]).node_def
        with self.session.graph.as_default():
            exported = tf.raw_ops.LookupTableExportV2(
                table_handle=self.session.graph.get_tensor_by_name(handle),
                Tkeys=tf.as_dtype(node.attr["key_dtype"].type),
                Tvalues=tf.as_dtype(node.attr["value_dtype"].type),
            )
        keys, values = self.session.run([exported.keys, exported.values])
        return keys, values

    def asked(self, keys: list[Any]) -> list[int]:
        """Returns TensorFlow's rows of some keys."""
        found: list[int] = self.session.run(self.rows, {"keys:0": keys}).tolist()
        return found


def look(graph: Graph) -> Callable[[Evaluation], tuple[Known, ...]]:
    def find(evaluation: Evaluation) -> tuple[Known, ...]:
        row = evaluation.of(graph.rows)
        evaluation.is_within(row, V)
        return (row,)

    return find


def fits(value: Known, key: int, row: int) -> bool:
    """Says whether TensorFlow's row of a key is the one that a value says."""
    if isinstance(value, Shifted):
        return row == key + value.by
    if isinstance(value, Fixed):
        return row == int(value.value)
    if isinstance(value, Hashed):
        return row == value.first + fingerprint64(str(key).encode()) % value.buckets
    return isinstance(value, Within) and value.low <= row <= value.high


INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "identity": lambda tf, k: k,
    "clamped": lambda tf, k: tf.clip_by_value(k, 0, V - 1),
    "minimum_only": lambda tf, k: tf.minimum(k, V - 1),
    "maximum_of_shifts": lambda tf, k: tf.maximum(k, k - 1),
    "one_retired": lambda tf, k: tf.where(k == 417, tf.constant(3, k.dtype), k),
    "not_equal": lambda tf, k: tf.where(k != 50, k, tf.constant(0, k.dtype)),
    "unknown_is_last": lambda tf, k: tf.where((k < 0) | (k >= V), tf.constant(V - 1, k.dtype), k),
    "unknown_is_first": lambda tf, k: tf.where((k >= 0) & (k < V), k, tf.zeros_like(k)),
    "unknown_is_filled": lambda tf, k: tf.where(
        (k < 0) | (k >= V), tf.fill(tf.shape(k), tf.constant(V - 1, k.dtype)), k
    ),
    "less_equal": lambda tf, k: tf.where(k <= 100, k, tf.ones_like(k)),
    "greater": lambda tf, k: tf.where(k > 100, tf.constant(7, k.dtype), k),
    "constant_is_less": lambda tf, k: tf.where(100 < k, tf.constant(7, k.dtype), k),
    "constant_is_at_most": lambda tf, k: tf.where(tf.less_equal(tf.constant(100, k.dtype), k), k - 1, k),
    "negated": lambda tf, k: tf.where(~(k >= 2), tf.constant(5, k.dtype), k),
    "offset": lambda tf, k: k - 1,
    "offset_back": lambda tf, k: (k - 7) + 7,
    "wrapped_as_keras": lambda tf, k: tf.where(k < 0, k + V, k),
    "times_one": lambda tf, k: k * tf.constant(1, k.dtype),
    "masked_to_zero": lambda tf, k: k * tf.cast(k < 100, k.dtype),
    "divided": lambda tf, k: tf.where((k >= 0) & (k < 20), k // 7, tf.zeros_like(k)),
    "remainder_in_steps": lambda tf, k: tf.where((k >= 0) & (k < 20), k % 7, tf.zeros_like(k)),
    "remainder": lambda tf, k: k % 100,
    "cast_up_and_down": lambda tf, k: tf.cast(tf.cast(tf.clip_by_value(k, -5, 500), tf.int16), k.dtype),
    "hash_as_text": lambda tf, k: tf.strings.to_hash_bucket_fast(tf.strings.as_string(k), V),
    "hash_behind_row_0": lambda tf, k: 1 + tf.strings.to_hash_bucket_fast(tf.strings.as_string(k), V - 1),
    "hash_of_all_but_0": lambda tf, k: tf.where(
        k == 0, tf.zeros_like(k, tf.int64), 1 + tf.strings.to_hash_bucket_fast(tf.strings.as_string(k), V - 1)
    ),
    "text_compared": lambda tf, k: tf.where(tf.strings.as_string(k) == "-1", tf.constant(9, k.dtype), k),
    "hash_and_remainder": lambda tf, k: tf.strings.to_hash_bucket_fast(tf.strings.as_string(k), V) % V,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("name", INTEGERS)
def test_pieces_cover_all_integers_and_say_tensorflows_rows(name: str, dtype: str) -> None:
    graph = Graph(INTEGERS[name], dtype)
    pieces = sorted(graph.function.pieces(look(graph), (0, V)), key=lambda piece: piece.keys or (0, 0))
    least, most = LIMITS[dtype]
    ends = [piece.keys for piece in pieces if piece.keys is not None]
    assert ends[0][0] == least and ends[-1][1] == most
    assert all(after[0] == before[1] + 1 for before, after in zip(ends, ends[1:], strict=False))
    random = np.random.default_rng(5)
    near = {edge + step for edge in (*EDGES, *(end for pair in ends for end in pair)) for step in (-1, 0, 1)}
    keys = sorted({key * sign for key in near for sign in (1, -1)} | set(random.integers(-300, 300, 50).tolist()))
    keys = [key for key in keys if least <= key <= most]
    for key, row in zip(keys, graph.asked(keys), strict=True):
        (value,) = next(p.values for p in pieces if p.keys is not None and p.keys[0] <= key <= p.keys[1])
        assert fits(value, key, row), (name, key, row, value)


def test_a_piece_lies_inside_the_table_or_outside() -> None:
    graph = Graph(INTEGERS["wrapped_as_keras"], "int64")
    pieces = graph.function.pieces(look(graph), (0, V))
    assert {piece.keys for piece in pieces} == {(-(2**63), -V - 1), (-V, -1), (0, V - 1), (V, 2**63 - 1)}


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "cast_to_int32": (lambda tf, k: tf.cast(k, tf.int32), "Cast to int32 drops the upper bits of ids"),
    "doubled": (lambda tf, k: k * 2, "Mul multiplies ids"),
    "squared": (lambda tf, k: k * k, "Mul multiplies ids"),
    "added_to_itself": (lambda tf, k: k + k, "AddV2 combines two numbers that both depend on the id"),
    "hash_of_a_shift": (
        lambda tf, k: tf.strings.to_hash_bucket_fast(tf.strings.as_string(k + 1), V),
        "AsString writes something else than the key",
    ),
    "hash_of_padded_text": (
        lambda tf, k: tf.strings.to_hash_bucket_fast(tf.strings.as_string(k, width=8, fill="0"), V),
        "AsString writes something else than the key",
    ),
    "divided_by_zero": (lambda tf, k: k // tf.constant(0, k.dtype), "FloorDiv divides ids by a number that is not"),
    "table_of_constants": (lambda tf, k: k + tf.constant([1, 2, 3], k.dtype), "a constant of 3 numbers takes part"),
    "hash_is_odd": (
        lambda tf, k: tf.where(tf.strings.to_hash_bucket_fast(tf.strings.as_string(k), V) < 100, k, tf.zeros_like(k)),
        "a hash of the key is compared with a number",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arithmetic_that_is_not_known_exactly_is_named(name: str) -> None:
    build, message = REFUSED[name]
    graph = Graph(build, "int64")
    with pytest.raises(NotRead, match=message):
        graph.function.pieces(look(graph), (0, V))


def vocabulary(tf: Any, words: list[Any], default: int, first: int = 2) -> Any:
    rows = tf.range(first, first + len(words), dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, rows), default)


STRINGS: dict[str, tuple[Callable[[Any, Any], Any], Known]] = {
    "hash": (lambda tf, k: tf.strings.to_hash_bucket_fast(k, V), Hashed(V)),
    "missing_value": (
        lambda tf, k: tf.where(k == "nan", tf.zeros_like(k, tf.int64), 1 + tf.strings.to_hash_bucket_fast(k, V - 1)),
        Hashed(V - 1, 1),
    ),
    "vocabulary": (lambda tf, k: vocabulary(tf, ["a", "b"], 1).lookup(k), Fixed(1)),
    "vocabulary_with_buckets": (
        lambda tf, k: tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1], tf.int64)), 5
        ).lookup(k),
        Hashed(5, 2),
    ),
    "mask_token": (
        lambda tf, k: tf.where(k == "[PAD]", tf.zeros_like(k, tf.int64), vocabulary(tf, ["a", "b"], 1).lookup(k)),
        Fixed(1),
    ),
    "not_the_empty_string": (
        lambda tf, k: tf.where(k != "", vocabulary(tf, ["a", "b"], 1).lookup(k), tf.zeros_like(k, tf.int64)),
        Fixed(1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRINGS)
def test_special_keys_are_found_and_all_others_are_one_case(name: str) -> None:
    build, unknown = STRINGS[name]
    graph = Graph(build, "string")
    (piece,) = graph.function.pieces(lambda evaluation: (evaluation.of(graph.rows),))
    assert piece.keys is None and piece.values == (unknown,)
    special = graph.function.special_keys([graph.rows])
    assert b"" in special.tolist()
    assert graph.function.at(graph.rows, special).tolist() == graph.asked(special.tolist())
    for key in [b"other", b"A", b"a ", b"[PAD", b"\xff", b"NaN", b"x" * 100]:
        assert key not in special.tolist()
        (row,) = graph.asked([key])
        wanted = unknown.first + fingerprint64(key) % unknown.buckets if isinstance(unknown, Hashed) else None
        assert row == (wanted if isinstance(unknown, Hashed) else unknown.value)  # type: ignore[union-attr]


def test_a_vocabulary_of_integers_is_left_out_of_the_intervals() -> None:
    def lookup(tf: Any, keys: Any) -> Any:
        pairs = tf.constant([10, 20], tf.int64), tf.constant([2, 3], tf.int64)
        return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(*pairs), 1).lookup(keys)

    graph = Graph(lookup, "int64")
    assert graph.function.special_keys([graph.rows]).tolist() == [10, 20]
    pieces = graph.function.pieces(lambda evaluation: (evaluation.of(graph.rows),))
    assert [piece.values for piece in pieces] == [(Fixed(1),)]
    assert graph.function.at(graph.rows, np.array([10, 20, 30])).tolist() == [2, 3, 1]


def test_a_vocabulary_of_strings_may_be_asked_for_the_text_of_an_integer() -> None:
    # No integer has the text 007, +7, -0 or red, and none of 64 bits that of 2^63.
    words = ["7", "-12", "0", "007", "+7", "-0", "red", str(2**63)]
    graph = Graph(lambda tf, keys: vocabulary(tf, words, 1).lookup(tf.strings.as_string(keys)), "int64")
    special = graph.function.special_keys([graph.rows])
    assert special.tolist() == [-12, 0, 7]
    assert graph.function.at(graph.rows, special).tolist() == graph.asked([-12, 0, 7]) == [3, 4, 2]
    pieces = graph.function.pieces(lambda evaluation: (evaluation.of(graph.rows),))
    assert [piece.values for piece in pieces] == [(Fixed(1),)]
    assert set(graph.asked([1, -1, 70, -7, 12, 2**63 - 1, -(2**63)])) == {1}


SMALL = [-0.0, 1e-39, -1e-39, 1.5e-38, -1.2e-38]
# Numbers of ids in the rows of a request: those at which TensorFlow's ops begin to add in another order, and others.
LENGTHS = [1, 2, 3, 8, 9, 10, 16, 17, 18, 1, 0, 25]


def row_numbers(tf: Any, splits: Any) -> Any:
    """Returns the number of each id's row."""
    return tf.repeat(tf.range(tf.size(splits) - 1), tf.cast(splits[1:] - splits[:-1], tf.int32))


def sparse(tf: Any, values: Any, splits: Any) -> Any:
    """Returns the SparseTensor of ragged values."""
    return tf.RaggedTensor.from_row_splits(values, splits).to_sparse()


def by_lookup(tf: Any, table: Any, values: Any, splits: Any, weights: Any, combiner: str) -> Any:
    """Combines rows by tf.nn.embedding_lookup_sparse; weights: None if all are 1."""
    weights = None if weights is None else sparse(tf, weights, splits)
    return tf.compat.v1.nn.safe_embedding_lookup_sparse(table, sparse(tf, values, splits), weights, combiner)


def served_lookup(tf: Any, table: Any, values: Any, splits: Any, combiner: str) -> Any:
    """Combines rows as TPUEmbedding's own serving does."""
    embedding = tf.tpu.experimental.embedding
    rows = embedding.TableConfig(*table.shape, combiner=combiner)
    config = embedding.FeatureConfig(rows)
    ids = tf.RaggedTensor.from_row_splits(values, splits)
    return embedding.serving_embedding_lookup([ids], [None], {rows: table}, [config])[0]


COMBINED: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    "one_each": lambda tf, t, v, s, w: tf.gather(t, v),
    "ragged_sum": lambda tf, t, v, s, w: tf.reduce_sum(tf.RaggedTensor.from_row_splits(tf.gather(t, v), s), 1),
    "segment_sum": lambda tf, t, v, s, w: tf.math.segment_sum(tf.gather(t, v), row_numbers(tf, s)),
    "segment_mean": lambda tf, t, v, s, w: tf.math.segment_mean(tf.gather(t, v), row_numbers(tf, s)),
    "lookup_sum": lambda tf, t, v, s, w: by_lookup(tf, t, v, s, None, "sum"),
    "lookup_mean": lambda tf, t, v, s, w: by_lookup(tf, t, v, s, None, "mean"),
    "weighted_sum": lambda tf, t, v, s, w: by_lookup(tf, t, v, s, w, "sum"),
    "weighted_mean": lambda tf, t, v, s, w: by_lookup(tf, t, v, s, w, "mean"),
    "tpu_mean": lambda tf, t, v, s, w: served_lookup(tf, t, v, s, "mean"),
}  # fmt: skip


@pytest.fixture(scope="module", params=[11, 3])
def versions(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """A SavedModel with a signature for each of COMBINED, and its adopted version, for a wide and a narrow table."""
    numbers = np.random.default_rng(3).standard_normal((40, request.param)).astype(np.float32)
    numbers[: len(SMALL)] = np.array(SMALL, np.float32)[:, None]
    numbers.reshape(-1)[100::7] = np.resize(SMALL, numbers.reshape(-1)[100::7].shape)
    module = tf.Module()
    module.table = tf.Variable(numbers)
    specs = {
        "ids": tf.TensorSpec([None], tf.int64),
        "splits": tf.TensorSpec([None], tf.int64),
        "weights": tf.TensorSpec([None], tf.float32),
    }

    def signature(name: str) -> Any:
        wanted = ["ids"] if name == "one_each" else [*specs] if "weighted" in name else ["ids", "splits"]

        def run(**inputs: Any) -> Any:
            given = [inputs.get(key) for key in specs]
            return {"vectors": COMBINED[name](tf, module.table, *given)}

        return tf.function(run).get_concrete_function(**{key: specs[key] for key in wanted})

    folder = tmp_path_factory.mktemp("small")
    tf.saved_model.save(module, str(folder / "1"), signatures={name: signature(name) for name in COMBINED})
    return folder / "1", adopt(folder / "1", out=folder / "adopted", measure=False)


@pytest.mark.parametrize("name", COMBINED)
def test_a_lookup_gives_the_bits_of_tensorflow(versions: tuple[Path, Path], name: str) -> None:
    original, adopted = versions
    manifest = manifest_of(adopted)
    assert manifest.signatures[name].kind == "lookup"
    servable = ServableLoader(frozenset({"serve"}), "off", compile_native)("model", 1, adopted)
    assert servable.native is not None
    random = np.random.default_rng(6)
    with open_signatures(original) as runner:
        for row in (*range(len(SMALL)), None):
            splits = np.cumsum([0, *LENGTHS])
            ids = np.full(splits[-1], row) if row is not None else random.integers(0, 40, splits[-1])
            weights = random.choice(np.array([1, 0.5, -2, 1e-39, 0], np.float32), splits[-1])
            given = {"ids": ids, "splits": splits, "weights": weights}
            request = {key: given[key] for key in runner.signatures[name].inputs}
            wanted = runner.run(name, request)["vectors"]
            found = servable.native.run(name, request)["vectors"]
            assert found.shape == wanted.shape
            same = (found.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(found) & np.isnan(wanted))
            assert same.all(), (row, found[~same.all(1)][:3], wanted[~same.all(1)][:3])


def total(tf: Any, rows: Any, splits: Any) -> Any:
    """Adds up the vectors of each row."""
    return tf.math.unsorted_segment_sum(rows, row_numbers(tf, splits), tf.size(splits) - 1)


def zero_if(tf: Any, condition: Any, vectors: Any) -> Any:
    """Makes vectors zero where a condition holds."""
    return tf.where(condition[:, None], tf.zeros_like(vectors), vectors)


def kept(tf: Any, table: Any, values: Any, splits: Any, weights: Any, condition: Any) -> Any:
    """Adds up the weighted vectors of the values for which a condition holds."""
    places = tf.where(condition)[:, 0]
    rows = tf.gather(table, tf.gather(values, places))
    rows = rows if weights is None else rows * tf.gather(weights, places)[:, None]
    segments = tf.gather(row_numbers(tf, splits), places)
    return tf.math.unsorted_segment_sum(rows, segments, tf.size(splits) - 1)


def norm(tf: Any, rows: Any) -> Any:
    return tf.norm(rows, axis=1)


# Graphs that treat few sizes, weights or rows apart, none of which is near a constant of the graph: what each makes of
# the table, values, row splits, row lengths and weights.
APART: dict[str, Callable[..., Any]] = {
    "first_ids": lambda tf, t, v, s, n, w: tf.gather(t, v[:100]),
    "last_ids": lambda tf, t, v, s, n, w: tf.gather(t, v[-100:]),
    "first_rows": lambda tf, t, v, s, n, w: total(tf, tf.gather(t, v), s)[:100],
    "segments_at_most": lambda tf, t, v, s, n, w: tf.math.unsorted_segment_sum(
        tf.gather(t, v), tf.minimum(row_numbers(tf, s), 99), tf.size(s) - 1
    ),
    "many_rows": lambda tf, t, v, s, n, w: zero_if(tf, n < tf.size(n, tf.int64) - 300, total(tf, tf.gather(t, v), s)),
    "lengths_divided": lambda tf, t, v, s, n, w: zero_if(tf, n // 7 > 5, total(tf, tf.gather(t, v), s)),
    "lengths_shifted": lambda tf, t, v, s, n, w: zero_if(tf, n - 30 > 25, total(tf, tf.gather(t, v), s)),
    "lengths_of_int8": lambda tf, t, v, s, n, w: zero_if(tf, tf.cast(n, tf.int8) < 0, total(tf, tf.gather(t, v), s)),
    "reciprocal_lengths": lambda tf, t, v, s, n, w: zero_if(
        tf, 1 / tf.cast(n, tf.float32) < 0.01, total(tf, tf.gather(t, v), s)
    ),
    "mean_by_float16": lambda tf, t, v, s, n, w: tf.math.divide_no_nan(
        total(tf, tf.gather(t, v), s), tf.cast(tf.cast(n, tf.float16), tf.float32)[:, None]
    ),
    "clipped_weights": lambda tf, t, v, s, n, w: total(
        tf, tf.gather(t, v) * (tf.minimum(w * 0.5, 8.0) * 2.0)[:, None], s
    ),
    "squared_weights": lambda tf, t, v, s, n, w: total(
        tf, tf.gather(t, v) * tf.where(tf.square(w) > 0, w, 0.0)[:, None], s
    ),
    "weights_that_are_numbers": lambda tf, t, v, s, n, w: total(
        tf, tf.gather(t, v) * tf.where(w == w, w, 0.0)[:, None], s
    ),
    "weights_above_zero": lambda tf, t, v, s, n, w: total(tf, tf.gather(t, v) * tf.maximum(w, 0.0)[:, None], s),
    "reciprocal_norms": lambda tf, t, v, s, n, w: total(
        tf, zero_if(tf, 1 / norm(tf, tf.gather(t, v)) < 0.001, tf.gather(t, v)), s
    ),
    "scaled_norms": lambda tf, t, v, s, n, w: total(
        tf, zero_if(tf, norm(tf, tf.gather(t, v)) * 0.001 > 5, tf.gather(t, v)), s
    ),
    "means_of_many_rows": lambda tf, t, v, s, n, w: (
        total(tf, tf.gather(t, v), s) / tf.cast(tf.where(tf.size(n) > 20, tf.maximum(n, 1), 1), tf.float32)[:, None]
    ),
    "empty_rows_of_many": lambda tf, t, v, s, n, w: (
        total(tf, tf.gather(t, v), s) / tf.cast(tf.where(tf.size(n) > 10, tf.maximum(n, 1), n), tf.float32)[:, None]
    ),
    "as_long_as_rows": lambda tf, t, v, s, n, w: zero_if(
        tf, (n == tf.size(n, tf.int64)) & (tf.size(n) > 1), total(tf, tf.gather(t, v), s)
    ),
    "two_rows": lambda tf, t, v, s, n, w: zero_if(tf, (tf.size(n) == 2) & (n > 0), total(tf, tf.gather(t, v), s)),
    "seven_rows_of_five": lambda tf, t, v, s, n, w: zero_if(
        tf, (tf.size(n) == 7) & (n == 5), total(tf, tf.gather(t, v), s)
    ),
    "seven_rows_by_a_quotient": lambda tf, t, v, s, n, w: total(
        tf, tf.gather(t, v) * tf.math.divide_no_nan(*[tf.cast(tf.size(n) - 7, tf.float32)] * 2), s
    ),
    "places_that_add_up": lambda tf, t, v, s, n, w: tf.where(
        tf.reduce_sum(tf.range(tf.size(n))) == 3003, 0.0, total(tf, tf.gather(t, v), s)
    ),
    "falling_lengths": lambda tf, t, v, s, n, w: tf.where(
        tf.reduce_all(n[1:] < n[:-1]) & (tf.size(n) > 3), 0.0, total(tf, tf.gather(t, v), s)
    ),
    "four_sizes": lambda tf, t, v, s, n, w: tf.where(
        tf.equal(tf.reduce_max(n), 9)
        & tf.equal(tf.reduce_min(n), 2)
        & tf.equal(tf.size(n), 5)
        & tf.equal(tf.size(v), 20),
        0.0,
        total(tf, tf.gather(t, v), s),
    ),
    "twenty_keys_in_seven_rows": lambda tf, t, v, s, n, w: tf.where(
        tf.equal(tf.size(v), 20) & tf.equal(tf.size(n), 7), 0.0, total(tf, tf.gather(t, v), s)
    ),
    "twenty_keys_in_seven_rows_by_slices": lambda tf, t, v, s, n, w: tf.where(
        (tf.size(v[19:20]) > tf.size(v[20:21])) & (tf.size(s[7:8]) > tf.size(s[8:9])),
        0.0,
        total(tf, tf.gather(t, v), s),
    ),
    "a_split_at_a_place": lambda tf, t, v, s, n, w: tf.where(
        tf.reduce_any(tf.equal(s[5:6], 13)), 0.0, total(tf, tf.gather(t, v), s)
    ),
    "weights_that_add_up": lambda tf, t, v, s, n, w: tf.where(
        tf.equal(tf.reduce_sum(w), 0.75), 0.0, total(tf, tf.gather(t, v) * w[:, None], s)
    ),
    "many_left_out": lambda tf, t, v, s, n, w: tf.where(
        tf.size(tf.where(v >= 0)) + 20 == tf.size(v), 0.0, kept(tf, t, v, s, None, v >= 0)
    ),
    "most_left_out": lambda tf, t, v, s, n, w: tf.where(
        tf.size(tf.where(v >= 0)) < tf.size(v) - tf.size(tf.where(v >= 0)), 0.0, kept(tf, t, v, s, None, v >= 0)
    ),
    "few_of_a_row_left_in": lambda tf, t, v, s, n, w: zero_if(
        tf,
        tf.math.unsorted_segment_sum(
            tf.ones_like(tf.where(v >= 0)[:, 0]), tf.gather(row_numbers(tf, s), tf.where(v >= 0)[:, 0]), tf.size(n)
        )
        < n - 15,
        kept(tf, t, v, s, None, v >= 0),
    ),
    "weights_or_one_key": lambda tf, t, v, s, n, w: kept(tf, t, v, s, w, (w > 0) | tf.equal(v, 77)),
    "weights_or_inside": lambda tf, t, v, s, n, w: kept(tf, t, v, s, w, (w > 0) | (v >= 0)),
    "all_but_one_in_long": lambda tf, t, v, s, n, w: kept(tf, t, v, s, None, (v != 77) | (tf.size(v) < 21)),
    "all_but_one": lambda tf, t, v, s, n, w: kept(tf, t, v, s, None, v - 77),
    "none_beside_one": lambda tf, t, v, s, n, w: (
        total(tf, tf.gather(t, v), s) * tf.cast(tf.size(tf.where(tf.equal(v, 77))) < 1, tf.float32)
    ),
}


def test_ids_that_are_left_out_before_rows_are_known_are_described(tmp_path: Path) -> None:
    def sums(table: Any, ids: Any, splits: Any) -> Any:
        return kept(tf, table, ids, splits, None, (ids >= 0) & (ids < 5000))

    spec = [("ids", [None], tf.int64), ("splits", [None], tf.int64)]
    (entry,) = entries(discover(saved(tmp_path / "1", {"sums": (sums, spec)}))).values()
    assert entry.kind == "lookup" and [one.on_bad_id for one in entry.features.values()] == ["drop"]


def test_weights_that_a_check_may_refuse_are_no_lookup(tmp_path: Path) -> None:
    def sums(table: Any, ids: Any, splits: Any, weights: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(tf.size(weights), 300)]):
            checked = tf.identity(weights)
        return total(tf, tf.gather(table, ids) * checked[:, None], splits)

    spec = [("ids", [None], tf.int64), ("splits", [None], tf.int64), ("weights", [None], tf.float32)]
    (entry,) = entries(discover(saved(tmp_path / "1", {"sums": (sums, spec)}))).values()
    assert entry.kind == "predict" and {one.weights for one in entry.features.values()} <= {None}


def test_a_factor_that_is_not_one_for_few_sizes_is_no_rounding(tmp_path: Path) -> None:
    def sums(table: Any, ids: Any, splits: Any) -> Any:
        ragged = tf.RaggedTensor.from_row_splits(ids, splits, validate=False)
        return tf.nn.embedding_lookup_sparse(table, ragged.to_sparse(), None, combiner="sum")

    def by_slices(table: Any, ids: Any, splits: Any) -> Any:
        twenty = tf.size(ids[19:20]) - tf.size(ids[20:21])
        seven_rows = tf.size(splits[7:8]) - tf.size(splits[8:9])
        return sums(table, ids, splits) * (1 + tf.cast(twenty * seven_rows, tf.float32))

    def by_a_quotient(table: Any, ids: Any, splits: Any) -> Any:
        product = tf.cast(tf.size(ids) * tf.size(splits) - 143, tf.float32)
        return sums(table, ids, splits) * tf.math.divide_no_nan(product, product)

    spec = [("ids", [None], tf.int64), ("splits", [None], tf.int64)]
    signatures = {one.__name__: (one, spec) for one in (by_slices, by_a_quotient)}
    found = discover(saved(tmp_path / "1", signatures), allow_rounding=True)
    assert {entry.kind for entry in entries(found).values()} == {"predict"}


def test_what_treats_few_requests_or_rows_apart_is_no_lookup(tmp_path: Path) -> None:
    module = tf.Module()
    module.table = tf.Variable(tf.ones([5000, 4]))
    dtypes = {"ids": tf.int64, "splits": tf.int64, "weights": tf.float32}

    def signature(name: str) -> Any:
        wanted = list(dtypes)[: 1 if "ids" in name else 3 if "weights" in name else 2]

        def run(**inputs: Any) -> Any:
            ids, splits, weights = (inputs.get(key) for key in dtypes)
            lengths = None if splits is None else splits[1:] - splits[:-1]
            return {"vectors": APART[name](tf, module.table, ids, splits, lengths, weights)}

        return tf.function(run).get_concrete_function(**{key: tf.TensorSpec([None], dtypes[key]) for key in wanted})

    tf.saved_model.save(module, str(tmp_path / "1"), signatures={name: signature(name) for name in APART})
    found = entries(discover(tmp_path / "1"))
    assert {name for name, entry in found.items() if entry.kind == "lookup"} == set()
    assert not found["first_ids"].features and not found["last_ids"].features


def saved(folder: Path, signatures: dict[str, tuple[Callable[..., Any], list[Any]]], rows: int = 5000) -> Path:
    """Saves a module with a table: each signature is a function of the table and the inputs, and their specs."""
    module = tf.Module()
    module.table = tf.Variable(np.random.default_rng(7).standard_normal((rows, 4)).astype(np.float32))
    functions = {
        name: tf.function(
            lambda *inputs, compute=compute: {"vectors": compute(module.table, *inputs)},
            input_signature=[tf.TensorSpec(shape, dtype, key) for key, shape, dtype in specs],
            autograph=False,
        )
        for name, (compute, specs) in signatures.items()
    }
    tf.saved_model.save(module, str(folder), signatures=functions)
    return folder


PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "head": lambda tf, ids: ids[:, :30],
    "tail": lambda tf, ids: ids[:, -30:],
    "between": lambda tf, ids: ids[:, 3:40],
    "every_second": lambda tf, ids: ids[:, ::2],
    "last": lambda tf, ids: ids[:, -1],
    "sliced": lambda tf, ids: tf.slice(ids, [0, 0], [-1, tf.minimum(tf.shape(ids)[1], 30)]),
    "gathered": lambda tf, ids: tf.gather(ids, tf.range(tf.minimum(tf.shape(ids)[1], 30)), axis=1),
}


def test_ids_at_some_places_of_a_row_are_no_lookup(tmp_path: Path) -> None:
    def reading(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda table, ids: tf.gather(table, choose(tf, ids))

    spec = [("ids", [None, None], tf.int64)]
    signatures = {name: (reading(choose), spec) for name, choose in PLACES.items()}
    found = entries(discover(saved(tmp_path / "1", signatures | {"all": (reading(lambda tf, ids: ids), spec)})))
    assert {name for name, entry in found.items() if entry.features} == {"all"}


def test_ids_at_some_places_of_several_open_sizes_are_no_lookup(tmp_path: Path) -> None:
    def reading(choose: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda table, ids: tf.gather(table, choose(ids))

    spec = [("ids", [None, None, None], tf.int64)]
    chosen = {"first": lambda ids: ids[:, :30], "inner": lambda ids: ids[:, :, :5], "all": lambda ids: ids}
    signatures = {name: (reading(choose), spec) for name, choose in chosen.items()}
    found = entries(discover(saved(tmp_path / "1", signatures)))
    assert {name for name, entry in found.items() if entry.features} == {"all"}


def test_a_table_that_is_not_trained_is_looked_up(tmp_path: Path) -> None:
    spec = [("ids", [None], tf.int64)]
    signatures: dict[str, tuple[Callable[..., Any], list[Any]]] = {
        "stopped": (lambda table, ids: tf.gather(tf.stop_gradient(table), ids), spec),
        "cast": (lambda table, ids: tf.gather(tf.cast(tf.stop_gradient(table), tf.float64), ids), spec),
        "moved": (lambda table, ids: tf.gather(tf.stop_gradient(table[1:]), ids), spec),
    }
    found = entries(discover(saved(tmp_path / "1", signatures)))
    assert {name: entry.kind for name, entry in found.items() if entry.features} == {
        "stopped": "lookup",
        "cast": "predict",
    }


def test_distinct_ids_are_no_lookup(tmp_path: Path) -> None:
    def counted(table: Any, ids: Any) -> Any:
        distinct, places = tf.unique(ids)
        share = tf.cast(tf.size(distinct), tf.float32) / tf.cast(tf.maximum(tf.size(ids), 1), tf.float32)
        return tf.gather(tf.gather(table, distinct), places) * share

    def restored(table: Any, ids: Any) -> Any:
        distinct, places = tf.unique(ids)
        return tf.gather(tf.gather(table, distinct), places)

    def plain(table: Any, ids: Any) -> Any:
        return tf.gather(table, tf.unique(ids)[0])

    spec = [("ids", [None], tf.int64)]
    functions = {"counted": counted, "restored": restored, "plain": plain}
    found = entries(discover(saved(tmp_path / "1", {name: (one, spec) for name, one in functions.items()})))
    assert {name for name, entry in found.items() if entry.kind == "lookup"} == {"restored"}
    # The rows that the share is multiplied with are looked up.
    assert {name for name, entry in found.items() if entry.features} == {"restored", "counted"}


def test_places_of_distinct_ids_are_no_numbers(tmp_path: Path) -> None:
    # A table of few more rows than the number that the graphs compare with: no trial holds nearly all of its ids.
    most = 3000
    chosen: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
        "restored": lambda table, distinct, places, rows: rows,
        "first": lambda table, distinct, places, rows: tf.where((places < most)[:, None], rows, 0.0),
        "weighted": lambda table, distinct, places, rows: rows * tf.cast(places < most, tf.float32)[:, None],
        "few": lambda table, distinct, places, rows: tf.where(tf.reduce_max(places) < most, rows, 0.0),
        "bounded": lambda table, distinct, places, rows: tf.gather(
            tf.gather(table, distinct), tf.minimum(places, most - 1)
        ),
    }

    def sums(name: str) -> Callable[..., Any]:
        def of(table: Any, ids: Any, splits: Any) -> Any:
            distinct, places = tf.unique(ids)
            rows = chosen[name](table, distinct, places, tf.gather(tf.gather(table, distinct), places))
            return tf.math.unsorted_segment_sum(
                rows, tf.ragged.row_splits_to_segment_ids(splits), tf.shape(splits)[0] - 1
            )

        return of

    spec = [("ids", [None], tf.int64), ("splits", [None], tf.int64)]
    found = entries(discover(saved(tmp_path / "1", {name: (sums(name), spec) for name in chosen}, rows=most + 10)))
    assert {name for name, entry in found.items() if entry.kind == "lookup"} == {"restored"}


def test_numbers_of_dropped_ids_decide_nothing(tmp_path: Path) -> None:
    # No trial drops so many ids of a row, or of a request. None of these graphs has a comparison with a number.
    decided: dict[str, Callable[[Any, Any], Any]] = {
        "all": lambda sums, dropped: sums,
        "as truths": lambda sums, dropped: tf.where(tf.cast(dropped - 12, tf.bool)[:, None], sums, 0.0),
        "of the request": lambda sums, dropped: tf.where(tf.cast(tf.reduce_sum(dropped) - 31, tf.bool), sums, 0.0),
        "the largest": lambda sums, dropped: (
            sums / tf.cast(tf.reduce_max(tf.stack([dropped, 12 + 0 * dropped]), 0) - 11, tf.float32)[:, None]
        ),
    }

    def means(name: str) -> Callable[..., Any]:
        def of(table: Any, ids: Any, splits: Any) -> Any:
            given = tf.RaggedTensor.from_row_splits(ids, splits).to_sparse()
            kept = tf.sparse.retain(given, given.values >= 0)
            filled, is_empty = tf.sparse.fill_empty_rows(kept, tf.constant(0, tf.int64))
            distinct, places = tf.unique(filled.values)
            rows = tf.cast(filled.indices[:, 0], tf.int32)
            sums = tf.where(is_empty[:, None], 0.0, tf.sparse.segment_sum(tf.gather(table, distinct), places, rows))
            counts = [
                tf.math.unsorted_segment_sum(
                    tf.ones(tf.shape(one.values)[:1], tf.int32), one.indices[:, 0], given.dense_shape[0]
                )
                for one in (given, kept)
            ]
            return decided[name](sums, counts[0] - counts[1])

        return of

    spec = [("ids", [None], tf.int64), ("splits", [None], tf.int64)]
    folder = saved(tmp_path / "1", {name: (means(name), spec) for name in decided})
    found = entries(discover(folder, allow_rounding=True))
    assert {name for name, entry in found.items() if entry.kind == "lookup"} == {"all"}


def test_features_whose_row_splits_the_graph_checks_are_described(tmp_path: Path) -> None:
    # TensorFlow lets each check wait for the one before it, of whatever input.
    def means(table: Any, *inputs: Any) -> Any:
        ragged = [tf.RaggedTensor.from_row_splits(*inputs[at : at + 2], validate=True) for at in (0, 2, 4)]
        return tf.concat([tf.reduce_sum(tf.gather(table, ids), 1) for ids in ragged], 1)

    specs = [(f"{name}_{part}", [None], tf.int64) for name in "abc" for part in ("ids", "splits")]
    (entry,) = entries(discover(saved(tmp_path / "1", {"sums": (means, specs)}))).values()
    assert entry.kind == "lookup"
    assert {lookup.row_splits for lookup in entry.features.values()} == {"a_splits", "b_splits", "c_splits"}


def test_a_signature_with_a_default_for_ids_is_no_lookup(tmp_path: Path) -> None:
    module = tf.Module()
    module.table = tf.Variable(tf.ones([40, 4]))

    usual = tf.constant([1, 2], tf.int64)

    def both(ids: Any, more: Any = usual) -> Any:
        return {"one": tf.gather(module.table, ids), "other": tf.gather(module.table, more)}

    specs = [tf.TensorSpec([None], tf.int64, name) for name in ("ids", "more")]
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"both": tf.function(both, input_signature=specs)})
    (found,) = discover(tmp_path / "1").signatures
    assert found.entry.kind == "predict" and found.entry.features.keys() == {"ids", "more"}
    assert found.reason.startswith("input 'more' has a default")


def test_rows_of_another_shape_are_cut_from_the_graph(tmp_path: Path) -> None:
    shapes: dict[str, Callable[[Any], Any]] = {
        "pairs": lambda rows: tf.reshape(rows, [-1, 8]),
        "flat": lambda rows: tf.reshape(rows, [-1]),
        "squeezed": lambda rows: tf.squeeze(rows),
        "apart": lambda rows: tf.expand_dims(rows, 1),
        "same": lambda rows: tf.reshape(rows, [-1, 4]),
        "of_the_batch": lambda rows: tf.reshape(rows, tf.stack([tf.shape(rows)[0], 4])),
        "of_the_rest": lambda rows: tf.reshape(rows, tf.stack([tf.shape(rows)[0], -1])),
        "turned": lambda rows: tf.reshape(rows, tf.stack([tf.shape(rows)[1], -1])),
        "reversed": lambda rows: tf.reshape(rows, tf.reverse(tf.shape(rows), [0])),
        "of_few": lambda rows: tf.reshape(rows, tf.stack([tf.minimum(tf.shape(rows)[0], 100), -1])),
    }

    def reading(name: str) -> Callable[[Any, Any], Any]:
        return lambda table, ids: shapes[name](tf.gather(table, ids))

    spec = [("ids", [None], tf.int64)]
    found = entries(discover(saved(tmp_path / "1", {name: (reading(name), spec) for name in shapes})))
    lookups = {name for name, entry in found.items() if entry.kind == "lookup"}
    assert lookups == {"same", "of_the_batch", "of_the_rest"}
    assert {name for name, entry in found.items() if entry.features} == {*shapes}


def test_a_variable_in_parts_by_columns_stays_with_tensorflow(tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.placeholder(tf.int64, [None], "ids")
        whole = v1.get_variable("whole", [40, 4])
        parts = v1.get_variable("apart", [40, 4], partitioner=v1.fixed_size_partitioner(2, axis=1))
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(tmp_path / "1"))
        rows = {"whole": tf.gather(whole, ids), "apart": tf.concat([tf.gather(part, ids) for part in parts], 1)}
        signatures = {
            name: v1.saved_model.predict_signature_def({"ids": ids}, {"rows": one}) for name, one in rows.items()
        }
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    found = discover(tmp_path / "1")
    assert {name: entry.kind for name, entry in entries(found).items()} == {"whole": "lookup", "apart": "predict"}
    assert [*found.tables.values()] == ["whole"]
