"""Copies another program's SavedModel and adds a manifest, so that the server reads its tables from mapped files.

The variables stay unchanged. The manifest describes each signature whose ops say that it is a lookup; if no signature
is one, adopt adds one. Every lookup is compared with the numpy oracle before the copy becomes a version.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from model_export.adoption.discovery import Discovery, discover
from model_export.adoption.keras_saving import load_keras, saved
from model_export.adoption.plan import (
    AdoptPlan,
    Unproven,
    left_to_tensorflow,
    plan_of_discovery,
    plan_of_spec,
    unproven_features,
)
from model_export.adoption.spec import Names, read_names, read_spec
from model_export.adoption.summary import Served, summary_lines
from model_export.answers.opened_graph import OpenedGraph
from model_export.errors import ExportError
from model_export.exporter.artifact import add_extra_files, base_provenance
from model_export.exporter.bundle_writer import BundleWriter
from model_export.exporter.versions import LabelSource, finish, new_version_folder, temporary_folder
from model_export.folder_checks import is_keras_file
from model_export.graphs.added_lookups import add_lookups, write_graph
from model_export.graphs.signature_runner import read_signature_inputs
from model_export.graphs.source import SIGNATURE_OF_DEVICE, VARIABLES_PREFIX, lookup_entry
from model_export.parity.comparison import Disagreements
from model_export.parity.integrity import file_sizes, saved_rows, table_entry, with_nonfinite
from model_export.parity.verify import check_parity
from service.artifact.bundle import BundleEntry, read_bundle
from service.artifact.manifest import ADOPTED_FROM, MANIFEST_PATH, UNWEIGHTED, LookupFeature, Manifest, SignatureEntry
from service.errors import did_you_mean


def names_text(found: Discovery) -> str:
    """Returns the found names as the text of a TOML file; a comment on each line describes the table or the feature."""
    lines = ["# Change the names on the right and pass this file to `model-export adopt` as --spec.", "[names.tables]"]
    for key, name in found.tables.items():
        entry = found.opened.variables[key]
        lines.append(f'{name} = "{name}"  # {key}, {entry.shape[0]} x {entry.shape[1]} {entry.dtype}')
    lines += ["", "[names.features]"]
    lookups = found.lookups()
    for name, feature in found.features.items():
        keys = "" if feature.keys is None else f", {feature.keys.entry.size or 'hashed'} keys"
        lines.append(f'{name} = "{name}"  # {_words(lookups[name])} of table {found.tables[feature.table]}{keys}')
    lines.append("")
    for signature in found.signatures:
        why = f": {signature.reason}" if signature.reason else ""
        lines.append(f"# signature {signature.name} is a {signature.entry.kind}{why}")
    return "\n".join(lines)


def with_names(found: Discovery, names: Names) -> Discovery:
    """Returns a copy of adopt's findings in which tables and features have the names that the user chose.

    Raises:
      ExportError: `names` renames a table or feature that was not found, or gives two tables or two features one name.
    """
    _check("table", names.tables, list(found.tables.values()))
    _check("feature", names.features, list(found.features))
    signatures = []
    for one in found.signatures:
        features = {names.features.get(name, name): lookup for name, lookup in one.entry.features.items()}
        together = {
            output: tuple(names.features.get(part, part) for part in parts)
            for output, parts in one.entry.concatenated.items()
        }
        entry = dataclasses.replace(one.entry, features=features, concatenated=together)
        signatures.append(dataclasses.replace(one, entry=entry))
    return dataclasses.replace(
        found,
        tables={key: names.tables.get(name, name) for key, name in found.tables.items()},
        features={names.features.get(name, name): feature for name, feature in found.features.items()},
        signatures=tuple(signatures),
    )


def _check(kind: str, names: Mapping[str, str], found: list[str]) -> None:
    if unknown := sorted(set(names) - set(found)):
        near = did_you_mean(unknown[0], found)
        raise ExportError(f"no {kind} {unknown[0]!r} was found; found: {', '.join(sorted(found))}{near}")
    used = [names.get(name, name) for name in found]
    if twice := sorted({name for name in used if used.count(name) > 1}):
        raise ExportError(f"two {kind}s would be named {twice[0]!r}")


def _words(lookup: LookupFeature) -> str:
    if lookup.row_splits is None:
        return f"rows by {lookup.ids}"
    return f"{lookup.combiner} of rows by {lookup.ids}, {lookup.row_splits}"


Say = Callable[[str], None]
_FAULT = "adopt read a lookup in the graph, and the graph's answers differ from it; please report this"
_UNPROVEN = (
    "adopt believes a spec only where the graph's ops say the same. --allow_unproven believes it after comparing some "
    "requests with the graph; wrong rows for other ids would then go unnoticed."
)


def adopt(
    saved_model: str | Path,
    spec: str | Path | None = None,
    out: str | Path | None = None,
    *,
    version: int | None = None,
    measure: bool = True,
    allow_rounding: bool = False,
    allow_nonfinite: bool = True,
    allow_unproven: bool = False,
    labels: Mapping[str, LabelSource] = MappingProxyType({}),
    say: Say = lambda line: None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Path:
    """Copies a SavedModel to out/<version>/, with a manifest, and returns that folder; the original is not changed.

    Args:
      saved_model: the folder that holds saved_model.pb, or the .keras or .h5 file of a Keras model.
      spec: a TOML file. None: adopt searches the graph for lookups. A file of names, as print_spec writes it: adopt
        searches, and uses these names. A file of tables and features, as adopt_example.SPEC_EXAMPLE: no search.
      out: the model's folder, which holds its versions; None: the parent of saved_model, which then is a version
          itself.
      version: a new number; None takes the one after the highest that out holds, or 1.
      measure: time each predict signature twice, as the whole graph in TensorFlow and with its lookups cut out of the
        graph, and serve it in the faster way; False: always cut the lookups out.
      allow_rounding: accept a lookup whose sums differ from TensorFlow's in the last bits; otherwise TensorFlow
        computes such sums.
      allow_nonfinite: adopt a table that holds NaN or infinity; the manifest then says how many.
      allow_unproven: believe what `spec` says of a signature whose ops adopt can not read, after comparing some
        requests with the graph; the manifest and the server's status then name its features.
      labels: table -> labels of its rows, as in export().
      say: called with lines of text: each step, and at the end how each signature is served.
      clock: gives the time that the manifest records.

    Raises:
      ExportError: the folder is no SavedModel, or has a manifest already; no signature reads rows of a variable; the
        graph contradicts the spec; or a table holds NaN or infinity without allow_nonfinite. `out` then gets no
        version.
    """
    folder = Path(saved_model)
    base = _base(folder, out)
    with _as_saved_model(folder) as folder:
        target = new_version_folder(base, version)
        inputs = read_signature_inputs(folder)
        if (folder / MANIFEST_PATH).exists():
            raise ExportError(f"{folder} has a lookup manifest already")
        names = Names() if spec is None else read_names(Path(spec))
        unproven: list[Unproven] = []
        if names is not None:
            found = with_names(discover(folder, say, allow_rounding=allow_rounding), names)
            opened, plan = found.opened, plan_of_discovery(found)
        else:
            found = discover(folder, say, allow_rounding=allow_rounding, needs_tables=False)
            opened = found.opened
            plan = plan_of_spec(read_spec(Path(str(spec)), opened.bundle), inputs, opened)
            unproven = unproven_features(plan, found)
            if not allow_unproven:
                if required := [one for one in unproven if one.signature in plan.required]:
                    raise ExportError("\n".join([*map(str, required), _UNPROVEN]))
                plan, unproven = left_to_tensorflow(plan, {one.signature: one.reason for one in unproven}), []
        provenance = {**base_provenance(int(target.name), clock()), ADOPTED_FROM: folder.name}
        if unproven:
            provenance["unproven"] = sorted(f"{one.signature}/{one.feature}" for one in unproven)
        with temporary_folder(base) as temporary:
            say("copying the SavedModel")
            artifact = temporary / target.name
            shutil.copytree(folder, artifact)
            if opened.repaired:
                write_graph(artifact, opened.meta_graph)
            copy = _Copy(artifact, opened, plan, provenance)
            manifest, served = copy.described(say, measure=measure)
            manifest = with_nonfinite(artifact, manifest, allow=allow_nonfinite)
            finish(artifact, manifest, target, labels)
    for line in summary_lines(plan, served):
        say(line)
    return target


def export_keras(
    model: Any, base: Path, *, extra_files: Mapping[str, Path], inputs: Any = None, **options: Any
) -> Path:
    """Exports a Keras model without TPU embedding layers to base/<version>/ and returns that folder.

    Args:
      model: a built model of Keras 3 or tf_keras. The version keeps its serving_default, and gets a `lookup`
        signature where no signature of the model is a lookup.
      inputs: tf.TensorSpecs of the model's inputs, as a dict, a list or alone; needed for a subclassed model.
      options: arguments of adopt().

    Raises:
      ExportError: the model is not built, Keras can not save it, or the model looks up no table.
    """
    with saved(model, inputs) as folder:
        add_extra_files(folder, extra_files)
        return adopt(folder, out=base, **options)


def print_spec(saved_model: str | Path, *, allow_rounding: bool = False) -> str:
    """Returns the names of the tables and features found in a SavedModel, as TOML; raises ExportError as adopt does."""
    with _as_saved_model(Path(saved_model)) as folder:
        return names_text(discover(folder, allow_rounding=allow_rounding))


def _as_saved_model(path: Path) -> AbstractContextManager[Path]:
    return saved(load_keras(path)) if is_keras_file(path) else nullcontext(path)


class _Copy:
    def __init__(self, artifact: Path, opened: OpenedGraph, plan: AdoptPlan, provenance: Mapping[str, object]) -> None:
        self._artifact, self._opened, self._plan, self._provenance = artifact, opened, plan, dict(provenance)
        self._variables = read_bundle(artifact / VARIABLES_PREFIX)
        self._index = _write_whole_tables(artifact, plan.tables, self._variables)
        _write_vocabularies(artifact, plan)

    def described(self, say: Say, *, measure: bool) -> tuple[Manifest, dict[str, Served]]:
        """Compares lookups with the numpy oracle; returns the manifest, and by signature how the server serves it."""
        say("comparing lookups with an oracle")
        self._plan = left_to_tensorflow(self._plan, self._disproved())
        added = self._added()
        signatures = {**self._plan.signatures, **added}
        manifest = self._manifest(signatures)
        parity = check_parity(
            self._artifact, manifest, [name for name, entry in signatures.items() if entry.kind == "lookup"]
        )
        served = {}
        for name, entry in signatures.items():
            reason = self._plan.reasons.get(name, "")
            cases = parity.signatures[name].cases if name in parity.signatures else 0
            served[name] = Served(entry, reason, name in self._plan.inexact, is_added=name in added, compared=cases)
        if measure:
            from model_export.adoption.measure import measured

            served = measured(self._artifact, manifest, served, say)
            self._provenance["measured"] = {
                name: {"rows": one.times.rows, "whole_us": one.times.before_s * 1e6, "now_us": one.times.after_s * 1e6}
                for name, one in served.items()
                if one.times is not None
            }
            manifest = self._manifest({name: one.entry for name, one in served.items()})
        return dataclasses.replace(manifest, parity=parity.manifest_json()), served

    def _disproved(self) -> dict[str, str]:
        """Compares the plan's lookups with the oracle in numpy; returns the first difference of each signature.

        Raises:
          Disagreements: a lookup that the user's spec requires differs from the oracle.
        """
        lookups = {name: entry for name, entry in self._plan.signatures.items() if entry.kind == "lookup"}
        if self._faults(lookups) is None:
            return {}
        why: dict[str, str] = {}
        # The comparison of all lookups together failed. Compare each signature by itself, to find the lookups that
        # differ from the oracle.
        for name, entry in lookups.items():
            fault = self._faults({name: entry})
            if fault is None:
                continue
            if name in self._plan.required:
                raise fault
            # A spec may only name inputs like those of this signature, whose outputs may have other names.
            why[name] = fault.lines[0] if self._plan.is_declared else f"{_FAULT}: {fault.lines[0]}"
        return why

    def _faults(self, signatures: Mapping[str, SignatureEntry]) -> Disagreements | None:
        if not signatures:
            return None
        try:
            check_parity(self._artifact, self._manifest(signatures))
        except Disagreements as disagreements:
            return disagreements
        except ExportError as error:
            return Disagreements([str(error)])
        return None

    def _added(self) -> dict[str, SignatureEntry]:
        """Adds lookup signatures to the adopted model's graph, and returns their manifest entries."""
        devices = self._plan.added
        if devices is None:
            devices = () if any(e.kind == "lookup" for e in self._plan.signatures.values()) else ("cpu",)
        model = self._plan.added_model
        if not devices or model is None:
            return {}
        lookups = {}
        for device in devices:
            entry = lookup_entry(model, device, batch_sizes=self._plan.batch_sizes)
            if device == "cpu":
                # The added lookup gives the same bits as the model's own graph.
                features = {key: self._summed(key, one) for key, one in entry.features.items()}
                entry = dataclasses.replace(entry, features=features)
            lookups[SIGNATURE_OF_DEVICE[device]] = entry
        handles = {table: self._opened.handles_of(self._plan.tables[table]) for table in (t.name for t in model.tables)}
        add_lookups(self._artifact, model, lookups, handles)
        return lookups

    def _summed(self, name: str, feature: LookupFeature) -> LookupFeature:
        """Returns a feature of an added lookup with the order of additions that the model's graph has."""
        summation = self._plan.summations.get(name, feature.summation)
        return dataclasses.replace(
            feature, summation=summation, weights=None if summation in UNWEIGHTED else feature.weights
        )

    def _manifest(self, signatures: Mapping[str, SignatureEntry]) -> Manifest:
        plan = self._plan
        tables = {}
        for table, key in plan.tables.items():
            index = read_bundle(self._artifact / self._index[table]) if table in self._index else self._variables
            tables[table] = table_entry(self._artifact, key, index[key])
        return Manifest(
            tables,
            plan.features,
            signatures,
            {name: one.entry for name, one in plan.vocabularies.items()},
            files=file_sizes(self._artifact),
            provenance=dict(self._provenance),
        )


def _base(folder: Path, out: str | Path | None) -> Path:
    if out is not None:
        return Path(out)
    if not folder.resolve().name.isdecimal():
        raise ExportError(f"{folder} is not a version of a model; name the folder for the copy (out, --out)")
    return folder.resolve().parent


def _write_vocabularies(artifact: Path, plan: AdoptPlan) -> None:
    for vocabulary in plan.vocabularies.values():
        if vocabulary.entry.file:
            path = artifact / vocabulary.entry.file
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"".join(line + b"\n" for line in vocabulary.lines))


def _write_whole_tables(
    artifact: Path, tables: Mapping[str, str], variables: Mapping[str, BundleEntry]
) -> dict[str, str]:
    # The parts of a partitioned variable need not be adjacent in the checkpoint, but a table is mapped as one piece.
    index = {}
    for table, key in tables.items():
        entry = variables[key]
        if entry.is_sliced:
            if any(part.start[1] or part.entry.shape[1] != entry.shape[1] for part in entry.slices):
                raise ExportError(f"table {table!r} is saved in parts by columns; only parts by rows can be adopted")
            index[table] = f"assets.extra/table_{table}"
            with BundleWriter(artifact / index[table]) as writer:
                writer.add(key, entry.dtype, (saved_rows(part, 0, part.shape[0]) for _, part in entry.slices))
    return index
