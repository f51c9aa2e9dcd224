"""Finds operations of a SavedModel's graph that touch files, processes or the network, if the server would run them.

A SavedModel is code: TensorFlow runs what its graph says, with the rights of the server. The search begins where a
server begins: at the outputs of the signatures, at the init op and at the op that restores the variables. It follows
inputs, control inputs, and functions, which calls, branches, loops and datasets name in attributes.

How the lists were made: all 1910 ops that TensorFlow 2.21 registers were listed with their inputs and attributes. Those
whose name, input or attribute speaks of files, folders, addresses, other processes, Python, or of a graph or a module
within a tensor were judged one by one, by their names, inputs and attributes in TensorFlow's op registry.
tests/unit/artifact/test_unsafe_ops_tensorflow.py has the pattern, and the ops that were read and are harmless; an op of
a newer TensorFlow that fits the pattern fails that test until it is read, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from service.artifact.signature_def import asset_files, read_meta_graph, tensor_names
from service.errors import ArtifactError

# Ops that are never run: they read or write files, ask other processes, call Python, or run a graph or a module that a
# tensor or an attribute holds, where this search can not look.
UNSAFE_OPS = frozenset(
    """
    ReadFile WriteFile MatchingFiles RecordInput Skipgram GenerateVocabRemapping LoadAndRemapMatrix
    CalibrationStatisticsSaver DumpTensor FileSystemSetConfiguration
    Save SaveSlices SaveV2 MergeV2Checkpoints DTensorRestoreV2
    FixedLengthRecordReader FixedLengthRecordReaderV2 LMDBReader TFRecordReader TFRecordReaderV2 TextLineReader
    TextLineReaderV2 WholeFileReader WholeFileReaderV2
    CSVDataset CSVDatasetV2 ExperimentalCSVDataset FixedLengthRecordDataset FixedLengthRecordDatasetV2 LMDBDataset
    ExperimentalLMDBDataset MatchingFilesDataset ExperimentalMatchingFilesDataset SqlDataset ExperimentalSqlDataset
    TFRecordDataset TFRecordDatasetV2 TextLineDataset
    CacheDataset CacheDatasetV2 DatasetToTFRecord ExperimentalDatasetToTFRecord ListSnapshotChunksDataset LoadDataset
    SaveDataset SaveDatasetV2 SnapshotChunkDataset SnapshotDataset SnapshotDatasetReader SnapshotDatasetV2
    DistributedSave DataServiceDataset DataServiceDatasetV2 DataServiceDatasetV3 DataServiceDatasetV4 RegisterDataset
    RegisterDatasetV2
    CloseSummaryWriter CreateSummaryDbWriter CreateSummaryFileWriter FlushSummaryWriter ImportEvent SummaryWriter
    StatsAggregatorSetSummaryWriter WriteAudioSummary WriteGraphSummary WriteHistogramSummary WriteImageSummary
    WriteRawProtoSummary WriteScalarSummary WriteSummary
    RemoteCall RpcCall RpcCheckStatus RpcClient RpcGetValue RpcServer RpcServerRegister RpcServerStart WorkerHeartbeat
    PyFunc PyFuncStateless EagerPyFunc
    DatasetFromGraph MlirPassthroughOp _TPUCompileMlir _XlaHostComputeMlir
    """.split()
)
# Op -> its input that names a file, and the file that the server itself gives to the graph there. Nearly every
# SavedModel restores its variables, and most with a vocabulary read it from the version's assets.
ASSET, CHECKPOINT = "a file of the version's assets", "the version's variables"
GIVEN_FILES: Mapping[str, tuple[int, str]] = {
    "InitializeTableFromTextFile": (1, ASSET),
    "InitializeTableFromTextFileV2": (1, ASSET),
    "Restore": (0, CHECKPOINT),
    "RestoreSlice": (0, CHECKPOINT),
    "RestoreV2": (0, CHECKPOINT),
}
# Op -> its attribute that may name a file, an address or a function of the process, and a check that says whether it
# does.
UNSAFE_ATTRIBUTES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "Copy": ("debug_ops_spec", lambda value: bool(value.list.s)),
    "CopyHost": ("debug_ops_spec", lambda value: bool(value.list.s)),
    **{
        op: ("debug_urls", lambda value: bool(value.list.s))
        for op in ("DebugIdentity", "DebugIdentityV2", "DebugIdentityV3", "DebugNanCount", "DebugNumericSummary")
    },
    "DecodeProtoV2": ("descriptor_source", lambda value: not _is_descriptor_within(value.s)),
    "EncodeProto": ("descriptor_source", lambda value: not _is_descriptor_within(value.s)),
    "FixedUnigramCandidateSampler": ("vocab_file", lambda value: bool(value.s)),
    "PrintV2": ("output_stream", lambda value: value.s.startswith(b"file:")),
    # JAX exports its models as such a module. A custom call in it calls a native function of the process by name.
    "XlaCallModule": ("module", lambda value: b"custom_call" in value.s),
}
# Op that calls a function with its inputs -> the number of the first input that the function gets.
_FIRST_ARGUMENTS = {"PartitionedCall": 0, "StatefulPartitionedCall": 0, "If": 1, "StatelessIf": 1, "Case": 1}
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")


def check_ops(saved_model_pb: Path, tags: frozenset[str]) -> None:
    """Raises ArtifactError, which names the op, if a SavedModel's graph would read or write files, or ask others."""
    if fault := unsafe_op(read_meta_graph(saved_model_pb, tags)):
        raise ArtifactError(f"{saved_model_pb}: {fault}, and --refuse_unsafe_ops refuses such a model")


def unsafe_op(meta_graph: Any) -> str:
    """Returns one line that names an unsafe op that the server would run, and where it stands; "" if there is none."""
    assets = asset_files(meta_graph)
    for asset in assets:
        path = PurePosixPath(asset.filename)
        if path.is_absolute() or ".." in path.parts:
            return f"asset {asset.filename!r} lies outside the folder of assets"
    fed = {_full(name) for one in meta_graph.signature_def.values() for name in tensor_names(one.inputs.values())}
    # If clients can feed the tensor of a file name, the name could be any file.
    given = {_full(asset.tensor_info.name): ASSET for asset in assets}
    saver = meta_graph.saver_def
    given[_full(saver.filename_tensor_name)] = CHECKPOINT
    search = _Search(meta_graph.graph_def, {name: file for name, file in given.items() if name not in fed})
    roots = {
        f"signature {name!r}": list(tensor_names(signature.outputs.values()))
        for name, signature in sorted(meta_graph.signature_def.items())
    }
    for name in set(_INIT_COLLECTIONS).intersection(meta_graph.collection_def):
        roots[f"the init op ({name})"] = list(meta_graph.collection_def[name].node_list.value)
    for root, tensors in roots.items():
        if fault := search.from_tensors(tensors):
            return f"{root} {fault}"
    restoring = [saver.restore_op_name] if saver.restore_op_name else []
    if fault := search.from_tensors(restoring, is_restoring=True):
        return f"the op that restores the variables {fault}"
    return ""


def _is_descriptor_within(source: bytes) -> bool:
    return source in (b"", b"local://") or source.startswith(b"bytes://")


def _full(tensor: str) -> str:
    """Returns a tensor's name with the number of its output.

    >>> _full("x"), _full("x:1")
    ('x:0', 'x:1')
    """
    return tensor if ":" in tensor else f"{tensor}:0"


class _Search:
    """A search of one graph; each function is searched once for each way in which it gets the server's files.

    Args:
      given: tensor -> the file that the server feeds there.
    """

    def __init__(self, graph: Any, given: Mapping[str, str]) -> None:
        self._nodes = {node.name: node for node in graph.node}
        self._functions = {function.signature.name: function for function in graph.library.function}
        self._given = given

    def from_tensors(self, tensors: Iterable[str], *, is_restoring: bool = False) -> str:
        waiting = [tensor.partition(":")[0] for tensor in tensors]
        seen: set[str] = set()
        done: set[tuple[str, tuple[str, ...]]] = set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self._nodes:
                continue
            seen.add(name)
            node = self._nodes[name]
            if fault := self._fault_of(node, self._file_at, done, is_restoring):
                return fault
            waiting += [_node_of(each) for each in node.input]
        return ""

    def _fault_of(self, node: Any, file_at: Callable[[str], str], done: set[Any], is_restoring: bool) -> str:
        """Returns what is wrong with a node, or with a function that it calls.

        Args:
          file_at: returns the file that the server gives to an input, "" if it gives none.
        """
        told = f"runs {node.op} (node {node.name!r})"
        if node.op in UNSAFE_OPS:
            return told
        if node.op in GIVEN_FILES:
            place, file = GIVEN_FILES[node.op]
            is_allowed = file == ASSET or is_restoring
            if not is_allowed or len(node.input) <= place or file_at(node.input[place]) != file:
                return f"{told} with a file that is not {file}"
        if node.op in UNSAFE_ATTRIBUTES:
            name, is_unsafe = UNSAFE_ATTRIBUTES[node.op]
            if is_unsafe(node.attr[name]):
                return f"{told} with a {name}"
        for function in self._called(node):
            data = [each for each in node.input if not each.startswith("^")]
            first = _FIRST_ARGUMENTS.get(node.op, 0 if function == node.op else len(data))
            if fault := self._fault_in(function, tuple(map(file_at, data[first:])), done, is_restoring):
                return fault
        return ""

    def _called(self, node: Any) -> Iterator[str]:
        if node.op in self._functions:
            yield node.op
        for value in node.attr.values():
            for function in (value.func, *value.list.func):
                if function.name:
                    yield function.name

    def _fault_in(self, name: str, files: tuple[str, ...], done: set[Any], is_restoring: bool) -> str:
        """Returns what is wrong with a function whose arguments are the given files; each is searched once."""
        function = self._functions.get(name)
        if function is None or (name, files) in done:
            return ""
        done.add((name, files))
        of_argument = dict(zip((one.name for one in function.signature.input_arg), files, strict=False))
        inside: dict[str, Any] = {node.name: node for node in function.node_def}

        def file_at(tensor: str) -> str:
            for _ in range(len(inside) + 1):
                if tensor in of_argument:
                    return str(of_argument[tensor])
                node = inside.get(_node_of(tensor))
                if node is None or node.op != "Identity":
                    break
                tensor = str(node.input[0])
            return ""

        for node in function.node_def:
            if fault := self._fault_of(node, file_at, done, is_restoring):
                return f"{fault} in function {name!r}" if " in function " not in fault else fault
        return ""

    def _file_at(self, tensor: str) -> str:
        for _ in range(len(self._nodes) + 1):
            if file := self._given.get(_full(tensor)):
                return file
            node = self._nodes.get(_node_of(tensor))
            if node is not None and node.op == "ReadVariableOp":
                return self._file_in_variable(_node_of(node.input[0]))
            if node is None or node.op != "Identity":
                break
            tensor = str(node.input[0])
        return ""

    def _file_in_variable(self, handle: str) -> str:
        """Returns the file whose name is the only value that a variable ever gets: TensorFlow 2 so keeps an asset."""
        node = self._nodes.get(handle)
        if node is None or node.op != "VarHandleOp":
            return ""
        every_node = [*self._nodes.values(), *(one for f in self._functions.values() for one in f.node_def)]
        handles = {
            one.name for one in every_node if one.op == "VarHandleOp" and _shared_name(one) == _shared_name(node)
        }
        given = set()
        for user in self._nodes.values():
            if handles.isdisjoint(_node_of(each) for each in user.input if not each.startswith("^")):
                continue
            if user.op == "AssignVariableOp":
                given.add(self._given.get(_full(user.input[1]), ""))
            elif user.op not in ("ReadVariableOp", "VarIsInitializedOp"):
                given.add("")
        is_known = len(given) == 1 and handles <= self._nodes.keys()
        return given.pop() if is_known else ""


def _shared_name(handle: Any) -> tuple[bytes, bytes]:
    return handle.attr["container"].s, handle.attr["shared_name"].s or handle.name.encode()


def _node_of(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]
