"""Compares the server's own code with an artifact's graphs in TensorFlow, on requests at their edges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from model_export.answers.gathered_rows import GatheredRows, NoGatherError, OpenedGather
from model_export.answers.served import Constants, ServedAnswers, ServedRefusedError, edge_ids, edge_keys
from model_export.graphs.signature_runner import GraphFailedError, GraphRefusedError, SignatureRunner
from model_export.parity.comparison import BitCounts, rows_of_other_bits
from model_export.parity.parity_cases import Case, CaseWriter, case_writer
from model_export.parity.prediction_log import LoggedPrediction
from model_export.parity.saved_table import SavedTable
from service.artifact.manifest import ADOPTED_FROM, LookupFeature, Manifest, SignatureEntry
from service.errors import ServiceError
from service.types import Array, RaggedIds, SignatureSpec, TensorSpec

# Numbers of rows of the requests by which cut and whole graphs are compared, beside requests at edges.
_ROWS = (1, 7, 17)
# An answer, or the text by which a request is refused.
Answer = Mapping[str, Array] | str


class NotComparableError(Exception):
    """Raised if a graph or the server's code fails for another reason than the request; the message says how."""


class ServedChecks:
    """The comparisons of the server's own code with the graphs of one artifact. Concurrency: one caller at a time."""

    def __init__(self, artifact: Path, manifest: Manifest, runner: SignatureRunner, served: ServedAnswers) -> None:
        self._artifact, self._manifest, self._runner, self._served = artifact, manifest, runner, served
        self._constants = Constants.of(artifact)
        self._graph: GatheredRows | None = None

    def lookup(self, name: str) -> BitCounts | None:
        if not self._served.has(name):
            return None
        return BitCounts(name, "the server's lookup", "the signature's graph in TensorFlow")

    def answer(self, name: str, inputs: Mapping[str, Array], outputs: tuple[str, ...] | None = None) -> Answer:
        try:
            return self._served.run(name, inputs, outputs)
        except ServedRefusedError as error:
            return str(error)
        except ServiceError as error:
            raise NotComparableError(f"the server's code fails: {error.message}") from error

    def prediction(self, name: str, predictions: Sequence[LoggedPrediction]) -> BitCounts | None:
        """Compares a prediction's graph whose lookups are cut out with the whole graph; None if it can not be cut.

        Raises NotComparableError.
        """
        if not self._served.has(name):
            return None
        counts = BitCounts(name, "the graph with its lookups cut out", "the whole graph in TensorFlow")
        for request in chain((dict(p.inputs) for p in predictions), self._edge_requests(name)):
            wanted = graph_answer(self._runner, name, request)
            counts.add(self.answer(name, request), wanted)
        return counts

    def gathered(self, name: str) -> tuple[list[BitCounts], tuple[str, ...]]:
        """Compares a lookup's features one by one with the rows that the graphs of predictions gather for them.

        Returns the comparisons, and one sentence for each that is not possible.

        A prediction reads a feature if its entry says so and, in a model that was not adopted, if it has an input of
        the same name. Other features are left out: no graph but the lookup's own looks them up. So are predictions
        that treat ids outside the table in another way.
        """
        entry = self._manifest.signatures[name]
        counts: list[BitCounts] = []
        uncompared: list[str] = []
        is_adopted = ADOPTED_FROM in self._manifest.provenance
        predictions = {other: one for other, one in self._manifest.signatures.items() if one.kind == "predict"}
        for feature, lookup in entry.features.items() if entry.device == "cpu" else ():
            for other, predict in predictions.items():
                source = predict.features.get(feature)
                if source is None and not is_adopted and lookup.ids in self._served.specs[other].inputs:
                    source = replace(lookup, weights=None)
                if source is None or _policy(source) != _policy(lookup):
                    continue
                try:
                    counts.append(self._gathered(name, feature, other, source))
                except NoGatherError as error:
                    uncompared.append(f"feature {feature!r} with the rows that {other!r} gathers: {error}")
        return counts, tuple(uncompared)

    def _gathered(self, name: str, feature: str, predict: str, source: LookupFeature) -> BitCounts:
        """Sends each edge id or key of a feature to a lookup, and to a prediction's graph up to its gather.

        Each is alone in its row. A request has all of them, and is halved where its rows are not all equal.
        """
        lookup = self._manifest.signatures[name].features[feature]
        table = self._manifest.tables[self._manifest.features[feature].table]
        output, dim = lookup.output, table.embedding_dim
        if output is None or lookup.max_norm is not None or lookup.max_sequence_length is not None:
            raise NoGatherError("the lookup does not answer single rows of the table")
        if table.dtype != "float32":
            raise NoGatherError(f"the lookup reads a table of {table.dtype}")
        self._graph = self._graph or GatheredRows(self._artifact)
        opened = self._graph.open(predict, source.ids, table.variable, SavedTable(self._artifact, table))
        counts = BitCounts(name, f"{feature!r} of the server's lookup", f"the rows that {predict!r} gathers")
        own = [part for part in (source.ids, source.row_splits, source.weights) if part is not None]
        spec = opened.part_of(self._served.specs[predict], own)
        is_described = feature in self._manifest.signatures[predict].features

        def add(values: Sequence[tuple[Array, Array]]) -> None:
            theirs, ours = (np.concatenate(column) for column in zip(*values, strict=True))
            answer = self.answer_of(name, output, self._request(name, lookup, ours), dim)
            request = filled(spec, self._request(predict, source, theirs), len(values))
            wanted = _rows_of_gather(opened, request, len(values))
            if len(values) > 1 and not _is_same(answer, wanted):
                add(values[: len(values) // 2])
                add(values[len(values) // 2 :])
            elif is_described or not isinstance(answer, str):
                # A lookup may refuse more than a prediction that its entry does not describe: a keras-rs layer reads
                # row -1 as the last one, and the lookup that export() makes of it refuses -1.
                counts.add(answer, wanted)

        try:
            if values := [*self._single_values(feature, name, predict, source)]:
                add(values)
        finally:
            opened.close()
        return counts

    def answer_of(self, name: str, output: str, inputs: Mapping[str, Array], dim: int) -> Answer:
        """Returns the first vector of each row in one output of a lookup, as {"rows": [B, D]}, or a refusal's text.

        An output may hold the vectors of a row's ids side by side.
        """
        try:
            answer = self._served.run(name, inputs, outputs=(output,))[output]
        except ServedRefusedError as error:
            return str(error)
        return {"rows": answer.reshape(-1, math.prod(answer.shape[1:]))[:, :dim]}

    def _single_values(
        self, feature: str, name: str, predict: str, source: LookupFeature
    ) -> Iterator[tuple[Array, Array]]:
        """Yields each edge id or key of a feature as two arrays of one: for a prediction, and for a lookup.

        The two differ where the prediction takes row numbers and the lookup takes keys: then only rows with a key are
        yielded. Ids that the lookup's dtype lacks are left out, and ids that the lookup drops: for such an id,
        TensorFlow's safe lookup gathers row 0, and replaces that row by zeros afterwards.
        """
        writer = self._writer(predict, {feature: source})
        lookup = self._manifest.signatures[name].features[feature]
        theirs = self._writer(name, {feature: lookup}).keys.get(feature)
        ours = writer.keys.get(feature)
        needs_keys = theirs is not None and not theirs.sends_rows and (ours is None or ours.sends_rows)
        dtype = self._served.specs[name].inputs[lookup.ids].numpy_dtype
        for case in writer.edge_cases(self._constants):
            ids = case.features[feature]
            values = ids.values if isinstance(ids, RaggedIds) else ids.reshape(len(ids), -1)[:, 0]
            for number in range(len(values)):
                value = values[number : number + 1]
                if needs_keys and theirs is not None:
                    if (key := theirs.key_of(int(value[0]))) is not None:
                        yield value, key
                elif not writer.is_dropped(feature, value) and _has(dtype, value):
                    yield value, value

    def _writer(self, signature: str, features: Mapping[str, LookupFeature]) -> CaseWriter:
        inputs = self._runner.signatures[signature].inputs
        return case_writer(self._artifact, self._manifest, signature, features, inputs=inputs)

    def _request(self, signature: str, lookup: LookupFeature, values: Array) -> dict[str, Array]:
        spec, rows = self._served.specs[signature].inputs[lookup.ids], len(values)
        if values.dtype != object and spec.dtype != "string":
            values = values.astype(spec.dtype)
        inner = [size or 1 for size in (spec.shape or (None,))[1:]]
        entry = self._manifest.signatures[signature]
        # A request to a lookup that has an input of ids has the row splits of all features that read this input.
        others = [one for one in entry.features.values() if one.ids == lookup.ids and entry.kind == "lookup"]
        ragged = [one for one in (lookup, *others) if one.row_splits is not None]
        return {
            lookup.ids: np.repeat(values, math.prod(inner)).reshape(rows, *inner),
            **{one.row_splits or "": np.arange(rows + 1) for one in ragged},
            **{one.weights: np.ones(rows, np.float32) for one in ragged if one.weights},
        }

    def _edge_requests(self, name: str) -> Iterator[dict[str, Array]]:
        spec, entry = self._served.specs[name], self._manifest.signatures[name]
        fixed = {tensor.shape[0] for tensor in spec.inputs.values() if tensor.shape and tensor.shape[0] is not None}
        if entry.features:
            writer = case_writer(self._artifact, self._manifest, name)
            edges: Iterator[Case] = iter(()) if fixed else writer.edge_cases(self._constants)
            for case in chain(writer.predict_cases(tuple(fixed) or _ROWS), edges):
                first = next(iter(case.features.values()))
                rows = len(first.row_splits) - 1 if isinstance(first, RaggedIds) else len(first)
                yield filled(spec, case.inputs(entry), rows)
        sizes = sorted({table.vocabulary_size for table in self._manifest.tables.values()})
        yield from undescribed_edges(spec, entry, sizes, self._constants, min(fixed, default=3))


def _has(dtype: np.dtype[Any] | None, value: Array) -> bool:
    """Says whether a dtype has the numbers of an array; the server also takes keys in place of numbers."""
    is_number = value.dtype != object and dtype is not None and dtype.kind in "iu"
    return not is_number or bool((value.astype(dtype) == value).all())


def _policy(lookup: LookupFeature) -> tuple[str, int | None]:
    return lookup.on_bad_id, lookup.default_row if lookup.on_bad_id == "default_row" else None


def graph_answer(
    runner: SignatureRunner, name: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
) -> Answer:
    try:
        return runner.run(name, inputs, outputs)
    except GraphRefusedError as error:
        return str(error)
    except (GraphFailedError, ValueError) as error:
        raise NotComparableError(f"its graph fails: {error}") from error


def _rows_of_gather(opened: OpenedGather, request: Mapping[str, Array], count: int) -> Answer:
    """Returns the first row that a gather reads for each row of a request."""
    found = opened.rows(request)
    if found is None:
        return "the graph refuses the request"
    _, rows = found
    if rows.size % count:
        return "the graph gathers rows of some ids only"
    return {"rows": rows.reshape(count, -1)[:, : rows.shape[-1]]}


def _is_same(answer: Answer, wanted: Answer) -> bool:
    if isinstance(answer, str) or isinstance(wanted, str):
        return False
    one, other = answer["rows"], wanted["rows"]
    return (one.shape, one.dtype) == (other.shape, other.dtype) and not rows_of_other_bits(one, other).any()


_OPEN_SIZE = 3
# Largest number of requests for one input.
_MOST_EDGES = 40
_SEED = 23


def filled(spec: SignatureSpec, request: Mapping[str, Array], rows: int) -> dict[str, Array]:
    rng = np.random.default_rng(_SEED)
    found = {
        name: array if spec.inputs[name].dtype == "string" else array.astype(spec.inputs[name].dtype)
        for name, array in request.items()
    }
    for names in spec.ragged_names:
        if names.values not in found:
            found[names.values] = _values(rng, spec.inputs[names.values], rows)
            found[names.row_splits] = np.arange(rows + 1).astype(spec.inputs[names.row_splits].dtype)
    for name, tensor in spec.inputs.items():
        if name not in found:
            found[name] = _values(rng, tensor, rows) if tensor.default is None else tensor.default
    return found


def undescribed_edges(
    spec: SignatureSpec, entry: SignatureEntry, sizes: Sequence[int], constants: Constants, rows: int
) -> Iterator[dict[str, Array]]:
    ours = {part for f in entry.features.values() for part in (f.ids, f.row_splits, f.weights)}
    ours |= {names.row_splits for names in spec.ragged_names}
    yield filled(spec, {}, rows)
    for name, tensor in spec.inputs.items():
        if name in ours or tensor.default is not None:
            continue
        for value in _edges(tensor, sizes, constants)[:_MOST_EDGES]:
            request = filled(spec, {}, rows)
            if request[name].size:
                request[name].reshape(-1)[-1] = value
                yield request


def _edges(tensor: TensorSpec, sizes: Sequence[int], constants: Constants) -> list[object]:
    if tensor.dtype == "string":
        return [*edge_keys([], constants)]
    if tensor.numpy_dtype is None or tensor.numpy_dtype.kind not in "iu":
        return []
    near = {int(n) for size in sizes for n in edge_ids(size, tensor.numpy_dtype, Constants())}
    return [*sorted(near), *edge_ids(1, tensor.numpy_dtype, constants).tolist()]


def _values(rng: np.random.Generator, tensor: TensorSpec, rows: int) -> Array:
    shape = () if tensor.shape == () else (rows, *((size or _OPEN_SIZE) for size in (tensor.shape or (None,))[1:]))
    if tensor.numpy_dtype is None or tensor.numpy_dtype.kind == "O":
        return np.full(shape, b"", object)
    if tensor.numpy_dtype.kind == "f":
        return np.asarray(rng.uniform(0.1, 1.0, shape)).astype(tensor.numpy_dtype)
    return np.zeros(shape, tensor.numpy_dtype)
