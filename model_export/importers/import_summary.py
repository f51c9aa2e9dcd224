"""Says what an import wrote: tables, features, and the commands that serve and ask the model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from model_export.graphs.signature_names import LOOKUP
from service.artifact.manifest import LookupFeature, Manifest
from service.artifact.vocabulary_lines import lines_of

_SHOWN_IDS = 2


def import_summary(artifact: Path, base_path: str) -> Iterator[str]:
    """Yields the lines that `model-export import` prints at its end.

    Args:
      base_path: the folder of the versions, or its address in an object store.
    """
    manifest = Manifest.read(artifact)
    assert manifest is not None  # the import has written it
    features = manifest.signatures[LOOKUP].features
    yield "tables:"
    for name, table in manifest.tables.items():
        yield f"  {name}: {table.vocabulary_size:,} rows x {table.embedding_dim} {table.dtype}"
    yield "features:"
    for name, feature in features.items():
        yield f"  {name}: table {manifest.features[name].table}, {_ids(manifest, name)}, {_form(feature)}"
    shown = {name: _example(artifact, manifest, name, feature) for name, feature in features.items()}
    yield f"serve: {serve_command(base_path)}"
    request = json.dumps({"features": shown}, ensure_ascii=False)
    # The server names a model after its folder.
    name = base_path.rstrip("/").rpartition("/")[2] if "://" in base_path else Path(base_path).absolute().name
    yield f"ask:   curl -d {shlex.quote(request)} localhost:8501/v1/models/{quote(name)}:lookup"


def serve_command(base_path: str) -> str:
    return f"embedding-server {shlex.quote(base_path)}" + (" --store_cache_dir=DIR" if "://" in base_path else "")


def _ids(manifest: Manifest, feature: str) -> str:
    vocabulary = manifest.features[feature].vocabulary
    if vocabulary is None:
        return "row numbers"
    entry = manifest.vocabularies[vocabulary]
    return f"{entry.size:,} {'string' if entry.key_dtype == 'string' else 'integer'} keys"


def _form(feature: LookupFeature) -> str:
    return "one per row" if feature.row_splits is None else f"any number per row ({feature.combiner})"


def _example(artifact: Path, manifest: Manifest, name: str, feature: LookupFeature) -> list[Any]:
    vocabulary = manifest.features[name].vocabulary
    ids: list[Any] = list(range(manifest.tables[manifest.features[name].table].vocabulary_size))[:_SHOWN_IDS]
    if vocabulary is not None:
        entry = manifest.vocabularies[vocabulary]
        with (artifact / entry.file).open("rb") as file:
            lines = [line.decode() for line in lines_of(b"".join(islice(file, _SHOWN_IDS)))]
        ids = lines if entry.key_dtype == "string" else [int(line) for line in lines]
    return ids if feature.row_splits is None else [ids, ids[:1]]
