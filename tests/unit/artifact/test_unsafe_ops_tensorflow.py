"""Operations that touch files, processes or the network are found wherever a server would run them, and only there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.signature_def import read_meta_graph
from service.artifact.unsafe_ops import GIVEN_FILES, UNSAFE_ATTRIBUTES, UNSAFE_OPS, check_ops, unsafe_op
from service.errors import ArtifactError

pytestmark = pytest.mark.tf

SERVE = frozenset({"serve"})
# An op is read by a person if its name, an input or an attribute (text) fits these patterns.
NAMES = re.compile(
    "File|Path|Dir(?!ect)|Read(?!Variable)|Write|Save|Restore|Load|Snapshot|Py[A-Z]|Rpc|Server|Client|Service|Debug|Dump"
    "|Summary|Record|Checkpoint|LMDB|Sql|CSV|Remote|Heartbeat|Cache|Register|Url|Mlir|Module|FromGraph|Print|Event"
)
FIELDS = re.compile(
    "file|path|(^|_)dir|address|_?uri|url|server|descriptor_source|module|mlir|graph_def|target$|^token$|prefix$|pattern"
    "|data_source|output_stream|ops_spec"
)
# Ops that fit, were read in TensorFlow 2.21, and touch neither files, processes nor the network.
HARMLESS = set(
    """
    AnonymousMemoryCache AudioSummary AudioSummaryV2 BarrierReadySize BoostedTreesFlushQuantileSummaries
    BoostedTreesMakeQuantileSummaries BoostedTreesMakeStatsSummary BoostedTreesQuantileStreamResourceAddSummaries
    BoostedTreesCalculateBestFeatureSplit BoostedTreesCalculateBestFeatureSplitV2
    BoostedTreesCalculateBestGainsPerFeature BoostedTreesExampleDebugOutputs BoostedTreesSparseAggregateStats
    BoostedTreesAggregateStats
    BoostedTreesSparseCalculateBestFeatureSplit CudnnRNN CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3
    CudnnRNNCanonicalToParams CudnnRNNCanonicalToParamsV2 CudnnRNNParamsSize CudnnRNNParamsToCanonical
    CudnnRNNParamsToCanonicalV2 CudnnRNNV2 CudnnRNNV3 DebugGradientIdentity DebugGradientRefIdentity
    DebugNumericSummaryV2 DecodeCSV DeleteMemoryCache DeleteRpcFutureResource DisableCopyOnRead DummyMemoryCache
    ExperimentalSetStatsAggregatorDataset ExperimentalStatsAggregatorSummary HistogramSummary IdentityReader
    IdentityReaderV2 ImageSummary LoadAllTPUEmbeddingParameters LoadTPUEmbeddingADAMParameters
    LoadTPUEmbeddingAdadeltaParameters LoadTPUEmbeddingAdagradMomentumParameters LoadTPUEmbeddingAdagradParameters
    LoadTPUEmbeddingCenteredRMSPropParameters LoadTPUEmbeddingFTRLParameters
    LoadTPUEmbeddingFrequencyEstimatorParameters LoadTPUEmbeddingMDLAdagradLightParameters
    LoadTPUEmbeddingMomentumParameters LoadTPUEmbeddingProximalAdagradParameters
    LoadTPUEmbeddingProximalYogiParameters LoadTPUEmbeddingRMSPropParameters
    LoadTPUEmbeddingStochasticGradientDescentParameters MergeSummary Print ReaderNumRecordsProduced
    ReaderNumRecordsProducedV2 ReaderNumWorkUnitsCompleted ReaderNumWorkUnitsCompletedV2 ReaderRead ReaderReadUpTo
    ReaderReadUpToV2 ReaderReadV2 ReaderReset ReaderResetV2 ReaderRestoreState ReaderRestoreStateV2 ReaderSerializeState
    ReaderSerializeStateV2 RegexFullMatch RegexReplace RiscSort RngReadAndSkip ScalarSummary SetStatsAggregatorDataset
    ShardedFilename ShardedFilespec Snapshot SnapshotNestedDatasetReader StaticRegexFullMatch StaticRegexReplace
    StatsAggregatorSummary TensorArrayRead TensorArrayReadV2 TensorArrayReadV3 TensorArrayWrite TensorArrayWriteV2
    TensorArrayWriteV3 TensorSummary TensorSummaryV2 _XlaCompileMlirPlaceholderProgramKey
    """.split()
)


def test_every_op_of_this_tensorflow_that_may_touch_a_file_was_read(tf: Any) -> None:
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.client import pywrap_tf_session

    ops = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    assert len(ops.op) > 1500

    def fits(op: Any) -> bool:
        fields = [one.name for one in op.input_arg]
        fields += [one.name for one in op.attr if one.type in ("string", "list(string)")]
        return bool(NAMES.search(op.name)) or any(map(FIELDS.search, fields))

    read = UNSAFE_OPS | GIVEN_FILES.keys() | UNSAFE_ATTRIBUTES.keys() | HARMLESS
    registered = {op.name for op in ops.op}
    assert {op.name for op in ops.op if fits(op)} - read == set(), "read these ops, and add each to a list"
    assert read - registered == set(), "this TensorFlow has no such op"
    of_name = {op.name: op for op in ops.op}
    for name, (place, _) in GIVEN_FILES.items():
        assert of_name[name].input_arg[place].name in ("filename", "file_pattern", "prefix")
    for name, (attribute, _) in UNSAFE_ATTRIBUTES.items():
        assert attribute in [one.name for one in of_name[name].attr]


class Models:
    """Writes SavedModels, and returns the unsafe op that is found in each."""

    def __init__(self, tf: Any, folder: Path) -> None:
        self.tf, self.folder = tf, folder

    def save(self, function: Callable[[Any], Any], module: Any = None) -> Path:
        """Saves a model whose signature is a function of strings."""
        tf = self.tf
        module = tf.Module() if module is None else module
        run = tf.function(function, input_signature=[tf.TensorSpec([None], tf.string, "x")])
        tf.saved_model.save(module, str(self.folder), {"serving_default": run.get_concrete_function()})
        return self.folder / "saved_model.pb"

    def save_graph(self, build: Callable[[Any], tuple[Any, Any, Any]]) -> Path:
        """Saves a graph of TensorFlow 1; build(v1) returns its input, its output and its init op."""
        v1 = self.tf.compat.v1
        with v1.Graph().as_default(), v1.Session() as session:
            x, y, init = build(v1)
            session.run(v1.global_variables_initializer())
            builder = v1.saved_model.Builder(str(self.folder))
            info = v1.saved_model.build_tensor_info
            signature = v1.saved_model.build_signature_def({"x": info(x)}, {"y": info(y)}, "tensorflow/serving/predict")
            builder.add_meta_graph_and_variables(
                session,
                ["serve"],
                {"serving_default": signature},
                assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
                main_op=init,
                strip_default_attrs=True,
            )
            builder.save()
        return self.folder / "saved_model.pb"


@pytest.fixture
def models(tf: Any, tmp_path: Path) -> Models:
    return Models(tf, tmp_path / "model")


def fault_of(saved_model_pb: Path) -> str:
    return unsafe_op(read_meta_graph(saved_model_pb, SERVE))


def read_within_branch_and_loop(tf: Any, x: Any) -> Any:
    def body(i: Any, text: Any) -> Any:
        return i + 1, tf.cond(i > 1, lambda: tf.io.read_file(x[0]), lambda: text)

    return tf.while_loop(lambda i, text: i < 3, body, [tf.constant(0), x[0]])[1]


UNSAFE: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "a file that the client names": ("ReadFile", lambda tf, x: tf.io.read_file(x[0])),
    "in a branch of a loop": ("ReadFile", read_within_branch_and_loop),
    "in a function that a function calls": (
        "ReadFile",
        lambda tf, x: tf.function(lambda y: tf.function(tf.io.read_file)(y))(x[0]),
    ),
    "in a map over rows": ("ReadFile", lambda tf, x: tf.map_fn(tf.io.read_file, x)),
    "in a case": ("ReadFile", lambda tf, x: tf.switch_case(tf.size(x), [lambda: x[0], lambda: tf.io.read_file(x[0])])),
    "in a function of a dataset": (
        "ReadFile",
        lambda tf, x: tf.data.Dataset.from_tensor_slices(x).map(tf.io.read_file).get_single_element(),
    ),
    "a dataset of files": ("TextLineDataset", lambda tf, x: tf.data.TextLineDataset(x).get_single_element()),
    "names of files": ("MatchingFiles", lambda tf, x: tf.io.matching_files(x)),
    "python": ("PyFunc", lambda tf, x: tf.numpy_function(lambda y: y, [x], tf.string)),
    "python, eagerly": ("EagerPyFunc", lambda tf, x: tf.py_function(lambda y: y, [x], tf.string)),
    "a file as log": ("PrintV2", lambda tf, x: _after(tf, tf.print(x, output_stream="file:///tmp/log"), x)),
    "another checkpoint": (
        "RestoreV2",
        lambda tf, x: tf.raw_ops.RestoreV2(prefix=x[0], tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.float32]),
    ),
    "a graph within a tensor": (
        "DatasetFromGraph",
        lambda tf, x: tf.raw_ops.DatasetToGraphV2(input_dataset=tf.raw_ops.DatasetFromGraph(graph_def=x[0])),
    ),
    "another device": (
        "RemoteCall",
        lambda tf, x: tf.raw_ops.RemoteCall(
            target=x[0],
            args=[x],
            Tout=[tf.string],
            f=tf.function(tf.identity).get_concrete_function(tf.TensorSpec([None], tf.string)),
        ),
    ),
}


def _after(tf: Any, op: Any, x: Any) -> Any:
    with tf.control_dependencies([op]):
        return tf.identity(x)


@pytest.mark.parametrize("what", UNSAFE)
def test_what_a_signature_runs_is_found(tf: Any, models: Models, what: str) -> None:
    op, run = UNSAFE[what]
    path = models.save(lambda x: run(tf, x))
    assert re.match(rf"signature '\w+' runs {op} \(node '", fault_of(path)), fault_of(path)
    with pytest.raises(ArtifactError, match=f"runs {op} .*--refuse_unsafe_ops refuses such a model$"):
        check_ops(path, SERVE)


def test_a_summary_writer_is_found(models: Models, tmp_path: Path) -> None:
    def build(v1: Any) -> tuple[Any, Any, Any]:
        x = v1.placeholder(v1.string, [None], "x")
        v1.get_variable("v", initializer=1.0)
        raw = v1.raw_ops
        summary = raw.WriteScalarSummary(writer=raw.SummaryWriter(), step=1, tag="n", value=1.0)
        with v1.control_dependencies([summary]):
            return x, v1.identity(x), None

    assert "runs WriteScalarSummary" in fault_of(models.save_graph(build))


@pytest.mark.parametrize("is_main_op", [True, False])
def test_what_the_init_op_runs_is_found(models: Models, is_main_op: bool, tmp_path: Path) -> None:
    def build(v1: Any) -> tuple[Any, Any, Any]:
        x = v1.placeholder(v1.string, [None], "x")
        v1.get_variable("v", initializer=1.0)
        write = v1.io.write_file(str(tmp_path / "written"), "y")
        with v1.control_dependencies([write] if is_main_op else []):
            init = v1.group(v1.tables_initializer())
        if not is_main_op:
            v1.add_to_collection("legacy_init_op", v1.group(write))
        return x, v1.identity(x), init if is_main_op else None

    fault = fault_of(models.save_graph(build))
    assert "WriteFile" in fault and (fault.startswith("signature '__saved_model_init_op'") or "init op" in fault)


def test_what_restores_the_variables_may_read_only_them(models: Models) -> None:
    def build(v1: Any) -> tuple[Any, Any, Any]:
        x = v1.placeholder(v1.string, [None], "x")
        v1.get_variable("v", initializer=1.0)
        v1.io.write_file(x[0], "y", name="write")
        v1.raw_ops.RestoreV2(
            prefix="/other", tensor_names=["a"], shape_and_slices=[""], dtypes=[v1.float32], name="other"
        )
        return x, v1.identity(x), None

    meta_graph = read_meta_graph(models.save_graph(build), SERVE)
    assert unsafe_op(meta_graph) == "", "SaveV2 and what no root reaches are no fault"
    for op, fault in (("write", "WriteFile"), ("other", "RestoreV2"), ("save/control_dependency", "SaveV2")):
        meta_graph.saver_def.restore_op_name = op
        assert unsafe_op(meta_graph).startswith(f"the op that restores the variables runs {fault} (node '")


def test_ordinary_models_are_no_fault(tf: Any, models: Models, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("a\nb\n")
    module = tf.Module()
    module.table = tf.lookup.StaticVocabularyTable(
        tf.lookup.TextFileInitializer(
            str(words), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        ),
        2,
    )
    module.counts = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    module.rows = tf.Variable(np.ones([4, 2], np.float32))

    def run(x: Any) -> Any:
        tf.print(x)
        return tf.nn.embedding_lookup(module.rows, module.table.lookup(x) % 4)

    path = models.save(run, module)
    assert fault_of(path) == ""
    meta_graph = read_meta_graph(path, SERVE)
    assert "RestoreV2" in str(meta_graph.graph_def) and "InitializeTableFromTextFileV2" in str(meta_graph.graph_def)
    # The same model with an asset elsewhere, and with a file that is no asset.
    asset = meta_graph.asset_file_def[0]
    for name in ("../../etc/passwd", "/etc/passwd"):
        asset.filename = name
        assert unsafe_op(meta_graph) == f"asset {name!r} lies outside the folder of assets"
    asset.filename = "words.txt"
    (assign,) = (
        node for node in meta_graph.graph_def.node if node.op == "AssignVariableOp" and "asset" in node.input[1]
    )
    assign.input[1], before = "Const", assign.input[1]
    assert "runs InitializeTableFromTextFileV2" in unsafe_op(meta_graph), "the variable with its name gets another one"
    assign.input[1] = before
    del meta_graph.asset_file_def[:]
    assert "runs InitializeTableFromTextFileV2" in unsafe_op(meta_graph)


def test_a_vocabulary_of_tensorflow_1_is_no_fault_unless_a_client_names_its_file(
    models: Models, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("a\nb\n")

    def build(v1: Any) -> tuple[Any, Any, Any]:
        x = v1.placeholder(v1.string, [None], "x")
        v1.get_variable("v", initializer=1.0)
        table = v1.lookup.StaticHashTable(
            v1.lookup.TextFileInitializer(
                str(words), v1.string, v1.lookup.TextFileIndex.WHOLE_LINE, v1.int64, v1.lookup.TextFileIndex.LINE_NUMBER
            ),
            -1,
        )
        return x, table.lookup(x), v1.tables_initializer()

    meta_graph = read_meta_graph(models.save_graph(build), SERVE)
    assert unsafe_op(meta_graph) == ""
    meta_graph.signature_def["serving_default"].inputs["file"].name = "asset_path:0"
    assert "runs InitializeTableFromTextFileV2" in unsafe_op(meta_graph)


@pytest.mark.parametrize(
    ("op", "attributes", "is_unsafe"),
    [
        ("XlaCallModule", {"module": b"module { stablehlo.add }"}, False),
        ("XlaCallModule", {"module": b"module { stablehlo.custom_call @system }"}, True),
        ("DecodeProtoV2", {"descriptor_source": b"local://"}, False),
        ("DecodeProtoV2", {"descriptor_source": b"/etc/passwd"}, True),
        ("EncodeProto", {}, False),
        ("EncodeProto", {"descriptor_source": b"bytes://x"}, False),
        ("DebugIdentityV3", {"debug_urls": [b"file:///tmp"]}, True),
        ("DebugIdentityV3", {}, False),
        ("CopyHost", {"debug_ops_spec": [b"DebugIdentity;grpc://host:1;0"]}, True),
        ("FixedUnigramCandidateSampler", {"vocab_file": b""}, False),
        ("FixedUnigramCandidateSampler", {"vocab_file": b"/etc/passwd"}, True),
    ],
)
def test_attributes_are_judged(models: Models, op: str, attributes: dict[str, Any], is_unsafe: bool) -> None:
    def build(v1: Any) -> tuple[Any, Any, Any]:
        x = v1.placeholder(v1.string, [None], "x")
        v1.get_variable("v", initializer=1.0)
        return x, v1.identity(x, name="y"), None

    meta_graph = read_meta_graph(models.save_graph(build), SERVE)
    (node,) = (node for node in meta_graph.graph_def.node if node.name == "y")
    node.op = op
    for name, value in attributes.items():
        if isinstance(value, list):
            node.attr[name].list.s.extend(value)
        else:
            node.attr[name].s = value
    assert (f"runs {op}" in unsafe_op(meta_graph)) is is_unsafe
