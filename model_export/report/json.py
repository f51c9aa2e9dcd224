"""Renders a report as strict JSON for programs, with the field names of model_export.report.document.

    artifact                  the folder; has_manifest, nbytes, files {path: bytes}
    meta_graphs[]             tags, tensorflow_version, signatures[]: name, kind, method, device, batch_sizes,
                              inputs[] and outputs[] (name, dtype, shape, is_optional), features {name: LookupFeature}
    tables[]                  name, variable, vocabulary_size, embedding_dim, dtype, nbytes, file, offset, features,
                              slices, scale, unread, health (TableHealth), projection (null without --html and --labels)
    features[]                name, table, vocabulary_name, vocabulary
    curves[]                  name, x_name, points [[x, value]]
    statistics[]              TableStatistics
    parity                    signatures {name: ...}, lowered {name: ...}, notes: ParityReport.to_json
    disagreements             null, or after `verify` a list, empty if there are no faults
    provenance, findings[], notes[]

A number that is NaN or infinite becomes null. Within one report_version keys may be added, but never removed.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from model_export.report.document import ArtifactReport

REPORT_VERSION = 1


def to_json(report: ArtifactReport) -> str:
    """Returns the report on an artifact as one JSON object, indented, with a newline at its end."""
    fields = {f.name: getattr(report, f.name) for f in dataclasses.fields(report)}
    document = {
        "report_version": REPORT_VERSION,
        "artifact": fields.pop("folder"),
        "nbytes": report.nbytes,
        **fields,
        "parity": None if report.parity is None else report.parity.to_json(),
    }
    return json.dumps(_plain(document), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
