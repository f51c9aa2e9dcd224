"""Measures an adopted model's signatures, with lookups cut out of the graph and with the whole graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from model_export.adoption.summary import Served, Times
from model_export.answers.opened_graph import SignatureGraph, open_graph
from model_export.graphs.signature_runner import SERVE, without_warnings
from model_export.tensorflow_setup import tf
from service.artifact.dict_vocabulary import vocabulary_lines
from service.artifact.manifest import LookupFeature, Manifest, SignatureEntry
from service.errors import ServiceError
from service.graph.flat_graph import FlatGraph, canonical
from service.process.trial import Trial, missing_core
from service.types import Array, SignatureSpec, TensorSpec

# Most values drawn for a field of open length.
_MOST_VALUES = 4
# Most steps drawn for a sequence.
_MOST_STEPS = 4
# Ids and the texts of words are drawn below this number, which is small so that tables have the rows.
_MOST_ID = 3

Field = tuple[str, Any, int | None]


def example_fillers(flat: FlatGraph, spec: SignatureSpec) -> dict[str, Callable[[int, np.random.Generator], Array]]:
    """Returns a function for each input that the graph parses as tf.Examples: (B, random) -> [B] strings."""
    found = {}
    inputs = {canonical(tensor.tensor_name): name for name, tensor in spec.inputs.items() if tensor.tensor_name}
    for node in flat.nodes.values():
        if node.op not in _READERS:
            continue
        given = flat.data_inputs(node.name)
        source = given[0]
        while source not in inputs and flat.nodes[source.partition(":")[0]].op in ("Identity", "Reshape", "ExpandDims"):
            source = flat.data_inputs(source.partition(":")[0])[0]
        if source in inputs:
            found[inputs[source]] = _READERS[node.op](flat, node, given)
    return found


def _examples(flat: FlatGraph, node: Any, inputs: list[str]) -> Callable[[int, np.random.Generator], Array]:
    """Reads ParseExampleV2. Its inputs: serialized, names, sparse_keys, dense_keys, ragged_keys, dense_defaults."""
    sparse, dense, ragged = (_keys(flat, tensor) for tensor in inputs[2:5])
    fields = _fields(node, sparse, dense, ragged)
    return lambda rows, random: _texts(_example(fields, random) for _ in range(rows))


def _old_examples(flat: FlatGraph, node: Any, inputs: list[str]) -> Callable[[int, np.random.Generator], Array]:
    """Reads ParseExample. Its inputs: serialized, names, each sparse key, each dense key, dense_defaults."""
    count = node.attr["Nsparse"].i
    keys = [key for tensor in inputs[2 : 2 + count + node.attr["Ndense"].i] for key in _keys(flat, tensor)]
    fields = _fields(node, keys[:count], keys[count:], [])
    return lambda rows, random: _texts(_example(fields, random) for _ in range(rows))


def _sequences(flat: FlatGraph, node: Any, inputs: list[str]) -> Callable[[int, np.random.Generator], Array]:
    """Reads ParseSequenceExampleV2. Its keys follow serialized and debug_name: of context, then of feature lists."""
    keys = [_keys(flat, tensor) for tensor in inputs[2:8]]
    context_sparse, context_dense, context_ragged, list_sparse, list_dense, list_ragged = keys
    attr = node.attr
    context = [
        *_open(context_sparse, attr["context_sparse_types"]),
        *_closed(context_dense, attr["Tcontext_dense"], attr["context_dense_shapes"]),
        *_open(context_ragged, attr["context_ragged_value_types"]),
    ]
    lists = [
        *_open(list_sparse, attr["feature_list_sparse_types"]),
        *_closed(list_dense, attr["feature_list_dense_types"], attr["feature_list_dense_shapes"]),
        *_open(list_ragged, attr["feature_list_ragged_value_types"]),
    ]

    def one(random: np.random.Generator) -> Any:
        example = tf.train.SequenceExample()
        for field in context:
            example.context.feature[field[0]].CopyFrom(_feature(field, random))
        steps = int(random.integers(1, _MOST_STEPS + 1))
        for field in lists:
            for _ in range(steps):
                example.feature_lists.feature_list[field[0]].feature.add().CopyFrom(_feature(field, random))
        return example

    return lambda rows, random: _texts(one(random) for _ in range(rows))


_READERS = {
    "ParseExampleV2": _examples,
    "ParseExample": _old_examples,
    "ParseSequenceExampleV2": _sequences,
}


def _keys(flat: FlatGraph, tensor: str) -> list[str]:
    node = flat.nodes[tensor.partition(":")[0]]
    if node.op != "Const":
        return []
    return [key.decode() for key in tf.make_ndarray(node.attr["value"].tensor).reshape(-1).tolist()]


def _fields(node: Any, sparse: Sequence[str], dense: Sequence[str], ragged: Sequence[str]) -> list[Field]:
    return [
        *_open(sparse, node.attr["sparse_types"]),
        *_closed(dense, node.attr["Tdense"], node.attr["dense_shapes"]),
        *_open(ragged, node.attr["ragged_value_types"]),
    ]


def _open(keys: Sequence[str], types: Any) -> list[Field]:
    return [(key, tf.as_dtype(dtype), None) for key, dtype in zip(keys, types.list.type, strict=True)]


def _closed(keys: Sequence[str], types: Any, shapes: Any) -> list[Field]:
    sizes = [int(np.prod([max(1, d.size) for d in shape.dim])) for shape in shapes.list.shape]
    return [(key, tf.as_dtype(dtype), size) for key, dtype, size in zip(keys, types.list.type, sizes, strict=True)]


def _example(fields: Sequence[Field], random: np.random.Generator) -> Any:
    example = tf.train.Example()
    for field in fields:
        example.features.feature[field[0]].CopyFrom(_feature(field, random))
    return example


def _feature(field: Field, random: np.random.Generator) -> Any:
    _, dtype, size = field
    count = int(random.integers(0, _MOST_VALUES + 1)) if size is None else size
    feature = tf.train.Feature()
    if dtype == tf.float32:
        feature.float_list.value.extend(random.uniform(0, 1, count).tolist())
    elif dtype == tf.string:
        feature.bytes_list.value.extend(b"%d" % number for number in random.integers(0, _MOST_ID, count))
    else:
        feature.int64_list.value.extend(random.integers(0, _MOST_ID, count).tolist())
    return feature


def _texts(examples: Iterator[Any]) -> Array:
    texts = [example.SerializeToString() for example in examples]
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


# Numbers of rows of the requests that adopt times; the summary shows the times of the largest request.
_ROWS = (1, 32, 256)
# Numbers of rows of further, untimed requests: the whole graph's answers are compared with the answers of the graph
# whose lookups are cut out.
_COMPARED_ROWS = (2, 7, 20, 64, 130)
_IDS_PER_ROW = 5
# The server runs the whole graph of a signature if the graph with its lookups cut out takes more than 1 / _LEAST_RATIO
# of the whole graph's processor time, for any timed number of rows. A tie is cut: two measurements of equal forms
# differ by 5 % on a busy machine.
_LEAST_RATIO = 0.9
_TURNS = 5
# What integer inputs that no description names may hold: ids of any table, zeros, row splits of as many ids as rows, or
# indices and dense shape of a sparse matrix.
Fill = Literal["ids", "zeros", "splits", "sparse"]
_FILLS: tuple[Fill, ...] = ("ids", "zeros", "splits", "sparse")
_SEED = 37


def measured(
    artifact: Path, manifest: Manifest, served: Mapping[str, Served], say: Callable[[str], None]
) -> dict[str, Served]:
    """Compares and times each signature; sets `run` to "whole" for a predict that the whole graph answers better.

    The whole graph is better if it takes less processor time than the graph with its lookups cut out, if any bit of the
    answers differs, or if no answers could be compared.

    The timed work is the server's: from a request's bytes to an answer's bytes. The graph's run alone is a third of
    that time, and a signature with cut-out lookups may skip arrays and checks that the whole graph needs.
    """
    found = dict(served)
    graphs = {
        spec.name: graph for spec, graph in open_graph(artifact).signatures() if isinstance(graph, SignatureGraph)
    }
    if why := missing_core():
        return {name: _run_whole(one, why) if one.entry.kind == "predict" else one for name, one in found.items()}
    # What the native core does not run is a warning to a server's operator; the summary here says how each is served.
    with without_warnings("service.core"), Trial(artifact, manifest, served.keys(), frozenset(SERVE)) as trial:
        for name, one in served.items():
            if (why := trial.not_run(name)) and one.entry.kind == "predict":
                found[name] = _run_whole(one, why)
            if not trial.can_cut(name):
                continue
            say(f"timing signature {name}")
            spec = trial.signatures[name]
            parsed = example_fillers(graphs[name].flat, spec) if name in graphs else {}
            is_predict = one.entry.kind == "predict"
            for fill in _FILLS:
                requests = _Requests(artifact, manifest, one.entry, spec, parsed, fill).by_rows()
                agreed = _agreement(trial, name, requests.values()) if is_predict else Agreement(0)
                if agreed.is_known:
                    break
            compared, refusal = agreed.compared, agreed.refusal
            ratio, times = None, None
            if not refusal:
                # No choice depends on the ratio of a lookup: only the request is timed whose times the summary shows.
                timed = _ROWS if is_predict else _ROWS[-1:]
                ratio, times = _timed(trial, name, {rows: requests[rows] for rows in timed})
                if is_predict and ratio is None:
                    refusal = "its lookups are not cut out: the server refuses the requests that adopt times"
            entry, reason = one.entry, one.reason
            if is_predict and (refusal or (ratio is not None and ratio < _LEAST_RATIO)):
                entry = dataclasses.replace(entry, run="whole")
                times = None if times is None else times._replace(after_s=times.before_s)
            reason = "; ".join(text for text in (reason, refusal) if text)
            found[name] = dataclasses.replace(
                one, entry=entry, times=times, reason=reason, compared=compared or one.compared
            )
    return found


def _run_whole(one: Served, why: str) -> Served:
    reason = "; ".join(text for text in (one.reason, f"its lookups are not cut out: {why}") if text)
    return dataclasses.replace(one, entry=dataclasses.replace(one.entry, run="whole"), reason=reason)


def _timed(trial: Trial, name: str, requests: Mapping[int, Mapping[str, Array]]) -> tuple[float | None, Times | None]:
    """Returns the smallest ratio of the whole graph's processor time to the cut graph's, and the largest request's
    times; two None if the server refuses a request.
    """
    try:
        rates = trial.rates(name, requests, turns=_TURNS)
    except ServiceError:
        return None, None
    largest = rates[max(rates)]
    return min(one.ratio for one in rates.values()), Times(1 / largest.whole, 1 / largest.cut, max(rates))


class Agreement(NamedTuple):
    """The result of a comparison of a cut graph with the whole graph.

    compared: number of answers that are equal bit by bit. refusal: why the lookups must not be cut out, or "".
    is_known: False if TensorFlow refused so many requests that nothing is known.
    """

    compared: int
    refusal: str = ""
    is_known: bool = True


def _agreement(trial: Trial, name: str, requests: Collection[Mapping[str, Array]]) -> Agreement:
    compared, error = 0, None
    for request in requests:
        cut, whole = trial.outputs(name, request)
        if isinstance(cut, ServiceError) or isinstance(whole, ServiceError):
            if isinstance(cut, ServiceError) and isinstance(whole, ServiceError):
                error = whole
                continue
            refused = f"{cut if isinstance(cut, ServiceError) else whole}".partition("\n")[0]
            return Agreement(compared, f"only with, or only without, its lookups cut out, a request fails: {refused}")
        if cut.keys() != whole.keys() or not all(_is_same(cut[output], whole[output]) for output in cut):
            return Agreement(compared, "answers would differ in some bits if its lookups were cut out")
        compared += 1
    if compared < len(requests) // 2:
        told = f"{error}".partition("\n")[0]
        refusal = (
            f"its lookups are not cut out: TensorFlow refused {len(requests) - compared} of {len(requests)} random "
            f"requests, so their answers could not be compared: {told}"
        )
        return Agreement(compared, refusal, is_known=False)
    return Agreement(compared)


def _is_same(found: Array, wanted: Array) -> bool:
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return False
    if found.dtype == object:
        return bool(found.tolist() == wanted.tolist())
    return found.tobytes() == wanted.tobytes()


@dataclass(frozen=True, slots=True)
class _Requests:
    """Maker of random requests for one signature.

    parsed: input of tf.Examples -> a function that makes them. fill: content of integers that no description names.
    """

    artifact: Path
    manifest: Manifest
    entry: SignatureEntry
    spec: SignatureSpec
    parsed: Mapping[str, Callable[[int, np.random.Generator], Array]]
    fill: Fill

    def by_rows(self) -> dict[int, dict[str, Array]]:
        random = np.random.default_rng(_SEED)
        found = {}
        for rows in (*_ROWS, *_COMPARED_ROWS):
            fillers = self._fillers(rows, random)
            request = fillers | {name: make(rows, random) for name, make in self.parsed.items()}
            seen: set[str] = set()
            for name, lookup in self.entry.features.items():
                drawn = self._drawn(name, lookup, rows, random, fillers[lookup.ids].shape)
                # Two features may read one input. If it holds keys, the first feature's keys are sent, which the
                # other's vocabulary need not have.
                request |= {part: array for part, array in drawn.items() if part not in seen}
                seen |= drawn.keys()
            found[rows] = request
        return found

    def _fillers(self, rows: int, random: np.random.Generator) -> dict[str, Array]:
        splits = {names.row_splits for names in self.spec.ragged_names}
        values = {part for names in self.spec.ragged_names for part in (names.values, names.weights)}
        found = {}
        for name, tensor in self.spec.inputs.items():
            if tensor.default is not None:
                found[name] = tensor.default
            elif name in splits:
                found[name] = np.zeros(rows + 1, tensor.numpy_dtype)
            else:
                found[name] = _filler(tensor, rows, random, self.fill, has_rows=name not in values)
        return found

    def _drawn(
        self, name: str, lookup: LookupFeature, rows: int, random: np.random.Generator, shape: tuple[int, ...]
    ) -> dict[str, Array]:
        """Draws random ids or keys for one feature; returns a request's ids, row splits and weights by input name."""
        shape = (rows * _IDS_PER_ROW,) if lookup.row_splits else shape
        feature = self.manifest.features[name]
        vocabulary = self.manifest.vocabularies.get(feature.vocabulary or "")
        ids = random.integers(0, self.manifest.tables[feature.table].vocabulary_size, shape)
        tensor = self.spec.inputs[lookup.ids]
        # An input of two vocabularies has none of them, and takes the strings of both.
        takes_keys = tensor.takes_keys or tensor.dtype == "string"
        if vocabulary is not None and takes_keys and self.spec.kind == "predict":
            lines = vocabulary_lines(self.artifact / vocabulary.file)[:1000] if vocabulary.file else ()
            keys = [lines[int(i) % len(lines)] if lines else b"%d" % i for i in ids.reshape(-1)]
            drawn = np.empty(len(keys), object)
            drawn[:] = keys
            ids = (drawn if tensor.dtype == "string" else np.array([int(key) for key in keys])).reshape(shape)
        request = {lookup.ids: ids if tensor.dtype == "string" else ids.astype(tensor.numpy_dtype or np.int64)}
        if lookup.row_splits:
            splits = np.arange(rows + 1) * _IDS_PER_ROW
            request[lookup.row_splits] = splits.astype(self.spec.inputs[lookup.row_splits].numpy_dtype or np.int64)
        if lookup.weights:
            request[lookup.weights] = np.ones(shape, np.float32)
        return request


def _filler(tensor: TensorSpec, rows: int, random: np.random.Generator, fill: Fill, *, has_rows: bool = True) -> Array:
    shape = tensor.shape if tensor.shape is not None else (None,)
    first = ((shape[0] if shape else None) or rows) if has_rows else 0
    sizes = (first, *(size or _IDS_PER_ROW for size in shape[1:])) if shape else ()
    dtype = tensor.numpy_dtype or np.dtype(object)
    if dtype.kind == "O":
        return np.full(sizes, b"", object)
    if dtype.kind not in "iu":
        return np.asarray(random.uniform(-1, 1, sizes)).astype(dtype)
    # A row split or an index is an int32 or int64; narrower integers can not hold every number of rows.
    if dtype.itemsize < 4:
        fill = "ids" if fill == "ids" else "zeros"
    if fill == "splits" and shape == (None,):
        return np.array([0, *np.sort(random.integers(0, rows + 1, rows - 1)), rows], dtype)
    if fill == "sparse" and shape in ((None, 2), (2,)):
        # Indices and dense shape of a sparse matrix with one id in each row.
        return np.array([[row, 0] for row in range(rows)] if len(sizes) == 2 else [rows, 1], dtype)
    # Ids that no description names may belong to a small table, so only two different ones are sent.
    return np.asarray(random.integers(0, 2 if fill == "ids" else 1, sizes)).astype(dtype)
