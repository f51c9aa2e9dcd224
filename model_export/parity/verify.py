"""Checks an artifact's files against its manifest, and its answers against the artifact's own graph in TensorFlow.

Files are compared with manifest and index. The graph of each lookup is compared with the oracle, and that of each
prediction with the answers that the trained model gave at export. Then the server's own code is compared with the
graphs: lookups on mapped tables, predictions whose lookups are cut out, and for a lookup that the exporter added the
rows that a prediction gathers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from model_export.answers.opened_graph import needed_inputs
from model_export.answers.served import Constants, ServedAnswers
from model_export.folder_checks import check_described
from model_export.graphs.signature_runner import (
    SERVE_TPU,
    GraphFailedError,
    GraphRefusedError,
    SignatureRunner,
    meta_graph_tags,
    open_signatures,
)
from model_export.graphs.source import RECORDED_PATH
from model_export.parity.comparison import (
    Comparison,
    DeviceDifference,
    Disagreements,
    ParityReport,
    SignatureParity,
    differing_rows,
)
from model_export.parity.integrity import integrity_faults
from model_export.parity.oracle import Ids, Keys, RefusedError, looked_up
from model_export.parity.parity_cases import Case, CaseWriter, case_writer
from model_export.parity.prediction_log import LoggedPrediction, read_predictions
from model_export.parity.saved_table import Rows, read_tables
from model_export.parity.served_checks import NotComparableError, ServedChecks, graph_answer
from service.artifact.manifest import LookupFeature, Manifest, SignatureEntry
from service.artifact.signature_def import read_signatures
from service.artifact.signature_rules import signature_faults
from service.errors import ArtifactError
from service.types import Array, RaggedIds, SignatureSpec

# A request that must be refused for one id has about this many features, if their outputs need no inputs of others.
_MOST_APART = 32
# Groups of options of LookupFeature. If two lookups of a feature differ in a group, the group is one reason for
# different results.
_OPTIONS = (
    ("mean_divisor",),
    ("max_ids_per_row", "on_too_many_ids"),
    ("on_bad_id", "default_row"),
    ("on_nonpositive_weight",),
    ("max_sequence_length",),
)


@dataclass(slots=True)
class _Found:
    rows: int = 0
    max_absolute: float = 0.0
    example: dict[str, Any] = field(default_factory=dict)


class DeviceComparison:
    def __init__(
        self,
        runner: SignatureRunner,
        manifest: Manifest,
        names: tuple[str, str],
        tables: Mapping[str, Rows],
        keys: Mapping[str, Keys],
    ) -> None:
        self._runner, self._manifest, self._names, self._tables, self._keys = runner, manifest, names, tables, keys
        self._found: dict[tuple[str, str], _Found] = {}
        self._rows: Counter[str] = Counter()
        self.faults: list[str] = []

    def differences(self, cases: Iterable[Case]) -> tuple[DeviceDifference, ...]:
        """Sends the requests `cases` to both compared lookups; returns their differences by feature and reason."""
        for case in cases:
            if case.refused:
                self._compare_refusal(case)
            else:
                self._compare(case)
        return tuple(
            DeviceDifference(name, self._names[1], why, f.rows, self._rows[name], f.max_absolute, f.example)
            for (name, why), f in sorted(self._found.items())
        )

    def _compare(self, case: Case) -> None:
        try:
            here, there = (self._run(name, case) for name in self._names)
        except GraphRefusedError:
            return
        first, second = (self._manifest.signatures[name].features for name in self._names)
        for name in first.keys() & second.keys():
            one, other = here[first[name].output or name], there[second[name].output or name]
            self._rows[name] += len(one)
            if one.shape != other.shape:
                self._note(name, f"shape {one.shape[1:]} here, {other.shape[1:]} there", len(one), 0.0, {})
                continue
            differs = np.flatnonzero(differing_rows(one, other))
            if not len(differs):
                continue
            reasons = self._reasons(name, first[name], second[name], case.features[name])
            for row in differs:
                reason = " and ".join(text for text, changes in reasons if changes[row])
                if not reason:
                    self.faults.append(f"feature {name!r}: {self._names[0]} and {self._names[1]} differ unexplained")
                size = float(np.abs(one[row].astype(np.float64) - other[row]).max())
                self._note(name, reason or "unexplained", 1, size, _example(case.features[name], int(row)))

    def _compare_refusal(self, case: Case) -> None:
        try:
            self._run(self._names[1], case)
        except GraphRefusedError:
            return
        features = self._manifest.signatures[self._names[0]].features
        feature = next(name for name, one in features.items() if case.refused.startswith(one.ids + ":"))
        self._note(feature, f"refused here, answered there: {case.refused}", 1, 0.0, {})

    def _run(self, name: str, case: Case) -> dict[str, Array]:
        return self._runner.run(name, case.inputs(self._manifest.signatures[name]))

    def _reasons(self, name: str, here: LookupFeature, there: LookupFeature, ids: Ids) -> list[tuple[str, Array]]:
        table, keys = self._tables[self._manifest.features[name].table], self._keys.get(name)
        wanted = looked_up(table, here, ids, keys)
        reasons = []
        for options in _OPTIONS:
            changed = replace(here, **{option: getattr(there, option) for option in options})
            if changed == here:
                continue
            try:
                otherwise = looked_up(table, changed, ids, keys)
            except RefusedError:
                continue
            reasons.append((_words(options[0], here, there), differing_rows(wanted, otherwise)))
        return reasons

    def _note(self, feature: str, reason: str, rows: int, size: float, example: dict[str, Any]) -> None:
        found = self._found.setdefault((feature, reason), _Found(example=example))
        found.rows += rows
        found.max_absolute = max(found.max_absolute, size)


def _words(option: str, here: LookupFeature, there: LookupFeature) -> str:
    if option == "mean_divisor":
        return "mean divided by max(sum of weights, 1)" if here.mean_divisor == "at_least_one" else "mean not bounded"
    if option == "max_ids_per_row":
        return f"cut at {here.max_ids_per_row} ids" if here.max_ids_per_row else "not cut"
    if option == "max_sequence_length":
        return f"cut at {here.max_sequence_length} steps"
    return f"{option} {getattr(here, option)!r}, not {getattr(there, option)!r}"


def _example(ids: Ids, row: int) -> dict[str, Any]:
    if not isinstance(ids, RaggedIds):
        return {"ids": [_json(ids[row])]}
    part = slice(ids.row_splits[row], ids.row_splits[row + 1])
    example: dict[str, Any] = {"ids": [_json(value) for value in ids.values[part]]}
    if ids.weights is not None:
        example["weights"] = [float(weight) for weight in ids.weights[part]]
    return example


def _json(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else int(value)


Recorded = Mapping[str, Sequence[LoggedPrediction]]


def verify_artifact(artifact: Path) -> ParityReport:
    """Checks a finished artifact: the files against its manifest, and its signatures' answers against expected ones.

    Raises:
      Disagreements: files, index, vocabularies or answers are wrong; the exception lists all faults.
      ExportError, ArtifactError: the manifest is missing or can not be read.
    """
    check_described(artifact)
    manifest = Manifest.read(artifact)
    # check_described() would have raised an ExportError if the artifact had no manifest.
    assert manifest is not None
    faults = integrity_faults(artifact, manifest)
    if faults:
        raise Disagreements([f"{artifact}: {fault}" for fault in faults])
    return check_parity(artifact, manifest)


def check_parity(artifact: Path, manifest: Manifest, names: Collection[str] | None = None) -> ParityReport:
    """Loads the SavedModel and compares the answers of every signature in the manifest with the signature's reference.

    Args:
      names: compare these signatures only; lookups among them are also compared with the rows that the predictions of
        the manifest gather.

    Raises:
      Disagreements: a signature is missing; has other inputs than its manifest entry, so that a server would run its
        graph instead; fails; answers a request that it must refuse; or differs by more than 1e-5 of the largest
        expected value.
    """
    faults: list[str] = []
    unfit = signature_faults(manifest, read_signatures(artifact / "saved_model.pb"))
    recorded = _recorded(artifact)
    tables = read_tables(artifact, manifest)
    with open_signatures(artifact) as runner, ExitStack() as stack:
        if missing := sorted(set(manifest.signatures) - set(runner.names)):
            raise Disagreements([f"the SavedModel lacks signatures {missing}, it has {runner.names}"])
        compared = None
        try:
            served = stack.enter_context(ServedAnswers(artifact, manifest))
            compared = ServedChecks(artifact, manifest, runner, served)
        except ArtifactError as error:
            faults.append(f"the server can not open {artifact}: {error.message}")
        checks = _Checks(artifact, manifest, runner, tables, compared)
        signatures = {}
        for name, entry in manifest.signatures.items():
            if names is not None and name not in names:
                continue
            if name in unfit:
                faults.append(unfit[name])
                signatures[name] = SignatureParity(entry.kind, "nothing", 0)
            elif entry.kind == "lookup":
                signatures[name] = checks.lookup(name)
            else:
                signatures[name] = checks.prediction(name, recorded.get(name, ()))
        signatures = checks.with_device_differences(signatures)
        faults += checks.faults
    lowered: dict[str, SignatureParity] = {}
    if tuple(sorted(SERVE_TPU)) in meta_graph_tags(artifact):
        lowered, found = _check_lowered(artifact, manifest, tables, recorded)
        faults += found
    report = ParityReport(signatures, lowered)
    if faults:
        raise Disagreements(faults, report)
    return report


def _recorded(artifact: Path) -> Recorded:
    path = artifact / RECORDED_PATH
    recorded: defaultdict[str, list[LoggedPrediction]] = defaultdict(list)
    for prediction in read_predictions(path) if path.exists() else ():
        recorded[prediction.signature].append(prediction)
    return recorded


class _Checks:
    def __init__(
        self,
        artifact: Path,
        manifest: Manifest,
        runner: SignatureRunner,
        tables: Mapping[str, Rows],
        served: ServedChecks | None = None,
    ) -> None:
        self._artifact, self._manifest, self._runner, self._tables = artifact, manifest, runner, tables
        self._served = served
        self._constants = Constants.of(artifact)
        self.faults: list[str] = []

    def lookup(self, name: str) -> SignatureParity:
        comparison = Comparison(name, "the oracle")
        bits = None if self._served is None else self._served.lookup(name)
        writer, cases, refused = self._writer(name), 0, 0
        if (unfed := self._unfed(name)) is not None:
            self.faults.append(unfed)
            return SignatureParity("lookup", "oracle", 0)
        entry, spec = self._manifest.signatures[name], self._runner.signatures[name]
        outputs_of = _outputs_of(entry)
        if self._served is not None:
            writer = replace(writer, apart=_apart(self._artifact, entry, spec, outputs_of))
        for case in chain(writer.lookup_cases(), writer.edge_cases(self._constants)):
            inputs = self._inputs(name, case)
            expected = {} if case.refused else self._expected(name, writer, case)
            refusal = case.refused or ("" if expected else "features of one output that differ in their rows")
            outputs = None
            if len(case.features) < len(entry.features):
                outputs = tuple(output for output, parts in outputs_of.items() if case.features.keys() >= {*parts})
            try:
                got = graph_answer(self._runner, name, inputs, outputs)
                if self._served is not None and bits is not None:
                    bits.add(self._served.answer(name, inputs, outputs), got)
            except NotComparableError as error:
                self.faults.append(f"signature {name!r} can not be compared: {error}")
                return SignatureParity("lookup", "oracle", 0)
            if isinstance(got, str):
                refused += 1
                if not refusal:
                    self.faults.append(f"signature {name!r} refuses a request that the manifest allows: {got}")
                continue
            if refusal:
                self.faults.append(f"signature {name!r} answers what the manifest refuses: {refusal}")
                continue
            cases += 1
            comparison.add(got, expected)
            self._check_empty_rows(name, got, expected)
        self.faults += comparison.faults
        parity = SignatureParity("lookup", "oracle", cases, comparison.outputs, refused)
        if self._served is None or bits is None:
            return parity
        self.faults += bits.faults
        gathered, uncompared = self._served.gathered(name)
        self.faults += [fault for counts in gathered for fault in counts.faults]
        results = (bits.result, *(counts.result for counts in gathered))
        return replace(parity, comparisons=results, uncompared=uncompared)

    def prediction(self, name: str, predictions: Sequence[LoggedPrediction]) -> SignatureParity:
        parity = self.recorded(name, predictions)
        if self._served is None:
            return parity
        try:
            counts = self._served.prediction(name, predictions)
        except NotComparableError as error:
            self.faults.append(f"signature {name!r} can not be compared: {error}")
            return parity
        if counts is None:
            # The server runs the artifact's own graph, so nothing but the recorded answers could disagree.
            why = "the server runs the whole graph in TensorFlow, and no answers of the trained model were recorded"
            return parity if predictions else replace(parity, uncompared=(why,))
        self.faults += counts.faults
        why = "TensorFlow refused every request that was tried"
        uncompared = (why,) if counts.result.requests == counts.result.refused else ()
        return replace(parity, comparisons=(counts.result,), uncompared=uncompared)

    def _writer(self, name: str) -> CaseWriter:
        return case_writer(self._artifact, self._manifest, name)

    def recorded(self, name: str, predictions: Sequence[LoggedPrediction]) -> SignatureParity:
        if not predictions:
            return SignatureParity("predict", "nothing", 0)
        comparison = Comparison(name, "the trained model")
        for prediction in predictions:
            try:
                comparison.add(self._runner.run(name, prediction.inputs), prediction.outputs or {})
            except (GraphRefusedError, GraphFailedError, ValueError) as error:
                self.faults.append(f"signature {name!r} refuses a recorded request: {error}")
        self.faults += comparison.faults
        return SignatureParity("predict", "recorded answers", len(predictions), comparison.outputs)

    def with_device_differences(self, signatures: Mapping[str, SignatureParity]) -> dict[str, SignatureParity]:
        entries = self._manifest.signatures
        cpu = next((n for n, e in entries.items() if e.kind == "lookup" and e.device == "cpu"), None)
        result = dict(signatures)
        for name, parity in signatures.items():
            is_padded = entries[name].kind == "lookup" and entries[name].device == "tpu_tensor_core"
            if not is_padded or cpu is None or not parity.cases or not signatures[cpu].cases:
                continue
            if not set(entries[name].features) <= set(entries[cpu].features):
                continue
            writer = self._writer(name)
            comparison = DeviceComparison(self._runner, self._manifest, (name, cpu), self._tables, writer.keys)
            of_cpu = self._writer(cpu)
            shared = (_with_other_features(case, of_cpu) for case in writer.lookup_cases())
            result[name] = replace(parity, differences=comparison.differences(shared))
            self.faults += comparison.faults
        return result

    def _check_empty_rows(self, name: str, got: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
        # The comparison skips numbers whose expected value is NaN, because a table may hold NaN. So check here that an
        # answer is NaN wherever the expected value is NaN.
        if all(feature.on_empty_row != "nan" for feature in self._manifest.signatures[name].features.values()):
            return
        for output, wanted in expected.items():
            fault = f"signature {name!r}, output {output!r} has numbers in rows without ids, the manifest says NaN"
            if not np.isnan(got[output][np.isnan(wanted)]).all() and fault not in self.faults:
                self.faults.append(fault)

    def _unfed(self, name: str) -> str | None:
        entry, infos = self._manifest.signatures[name], self._runner.signatures[name].inputs
        parts = (part for f in entry.features.values() for part in (f.ids, f.row_splits, f.weights) if part)
        described = set(parts)
        if described == set(infos):
            return None
        return f"signature {name!r} takes {sorted(infos)}, the manifest says {sorted(described)}"

    def _inputs(self, name: str, case: Case) -> dict[str, Array]:
        infos = self._runner.signatures[name].inputs
        inputs = case.inputs(self._manifest.signatures[name])
        return {key: a if infos[key].dtype == "string" else a.astype(infos[key].dtype) for key, a in inputs.items()}

    def _expected(self, name: str, writer: CaseWriter, case: Case) -> dict[str, Array]:
        entry = self._manifest.signatures[name]
        shapes = {output: spec.shape for output, spec in self._runner.signatures[name].outputs.items()}
        found = {}
        for key, feature in entry.features.items():
            table = self._tables[self._manifest.features[key].table]
            try:
                found[key] = looked_up(table, feature, case.features[key], writer.keys.get(key))
            except RefusedError as error:
                raise AssertionError(f"a case of {name!r} has no answer: {error}") from error
        outputs = _outputs_of(entry)
        if any(len({len(found[key]) for key in keys}) > 1 for keys in outputs.values()):
            # One feature's vectors lack the last, empty rows of the batch, so the graph can not concatenate the
            # features: there is no expected answer.
            return {}
        return {output: _joined([found[key] for key in keys], shapes.get(output)) for output, keys in outputs.items()}


def _outputs_of(entry: SignatureEntry) -> dict[str, tuple[str, ...]]:
    alone = {feature.output: (key,) for key, feature in entry.features.items() if feature.output is not None}
    return {**alone, **entry.concatenated}


def _apart(
    artifact: Path, entry: SignatureEntry, spec: SignatureSpec, outputs: Mapping[str, tuple[str, ...]]
) -> dict[str, Collection[str]]:
    """Returns feature -> a few features, the outputs of which the graph computes without the others' inputs.

    Returns {} if the graph needs other inputs for some output, as it does where one function computes all outputs.
    """
    needed = needed_inputs(artifact, spec)
    group_of: dict[str, dict[str, None]] = {name: {name: None} for name in entry.features}
    for output, parts in outputs.items():
        if not needed[output] <= {name for part in parts for name in _inputs_of(entry.features[part])}:
            return {}
        merged = {name: None for part in parts for name in group_of[part]}
        group_of.update(dict.fromkeys(merged, merged))
    found: dict[str, Collection[str]] = {}
    # TensorFlow copies the graph once for each set of outputs, so a set has several features.
    some: dict[str, None] = {}
    for name, group in group_of.items():
        if name not in found:
            some = some if len(some) < _MOST_APART else {}
            some |= group
            found |= dict.fromkeys(group, some)
    return found


def _inputs_of(feature: LookupFeature) -> list[str]:
    return [name for name in (feature.ids, feature.row_splits, feature.weights) if name is not None]


def _joined(parts: Sequence[Array], shape: tuple[int | None, ...] | None) -> Array:
    if shape is not None and len(shape) == 2:
        # A graph may return a [B, K, D] result in the shape [B, K * D].
        parts = [part.reshape(len(part), math.prod(part.shape[1:])) for part in parts]
    return np.concatenate(parts, axis=-1)


def _with_other_features(case: Case, writer: CaseWriter) -> Case:
    # `case` was made for another lookup signature, which may lack features of this signature: add ids for these
    # features.
    missing = set(writer.signature.features) - set(case.features)
    if not missing:
        return case
    filler = next(iter(writer.predict_cases((1,))))
    return Case({**case.features, **{name: filler.features[name] for name in missing}}, case.refused)


def _check_lowered(
    artifact: Path, manifest: Manifest, tables: Mapping[str, Rows], recorded: Recorded
) -> tuple[dict[str, SignatureParity], list[str]]:
    result: dict[str, SignatureParity] = {}
    with open_signatures(artifact, SERVE_TPU) as runner:
        checks = _Checks(artifact, manifest, runner, tables)
        for name in runner.names:
            entry = manifest.signatures.get(name)
            if entry is not None and entry.kind == "lookup":
                result[name] = checks.lookup(name)
            elif recorded.get(name):
                result[name] = _lowered_predictions(runner, name, recorded[name], checks.faults)
    return result, [f"{{serve,tpu}} {fault}" for fault in checks.faults]


def _lowered_predictions(
    runner: SignatureRunner, name: str, predictions: Sequence[LoggedPrediction], faults: list[str]
) -> SignatureParity:
    # The tensor core cuts long rows and computes a mean with a divisor of at least one, so its predictions may differ
    # from those of the {serve} graph. Such a difference is only reported; a failed request is a fault.
    found: dict[str, _Found] = {}
    compared: Counter[str] = Counter()
    for prediction in predictions:
        try:
            got = runner.run(name, prediction.inputs)
        except (GraphRefusedError, GraphFailedError, ValueError) as error:
            faults.append(f"signature {name!r} refuses a recorded request: {error}")
            continue
        for output, wanted in (prediction.outputs or {}).items():
            if output not in got or got[output].shape != wanted.shape or wanted.dtype.kind != "f" or not wanted.ndim:
                continue
            differs = differing_rows(wanted, got[output])
            compared[output] += len(differs)
            if differs.any():
                one = found.setdefault(output, _Found())
                one.rows += int(differs.sum())
                one.max_absolute = max(one.max_absolute, float(abs(got[output][differs] - wanted[differs]).max()))
    reason = "tensor-core arithmetic: rows cut at K ids, means divided by max(sum of weights, 1)"
    differences = tuple(
        DeviceDifference(output, "{serve}", reason, one.rows, compared[output], one.max_absolute)
        for output, one in found.items()
    )
    return SignatureParity("predict", "recorded answers", len(predictions), differences=differences)
