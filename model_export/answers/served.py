"""Answers requests as the server does, in its native core: lookups from mapped tables, predictions from graphs without
their lookups. Where no core is installed, the reference answers lookups.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from model_export.graphs.signature_runner import SERVE
from service.artifact.manifest import Manifest
from service.artifact.signature_def import read_signatures
from service.engine.servable import Servable
from service.errors import ArtifactError, InvalidRequest
from service.process.trial import cut_servable, missing_core, reference_of
from service.reference.model import Model
from service.tables.backend import open_lookups
from service.types import Array, SignatureSpec


class ServedRefusedError(Exception):
    """Raised for a request that the server refuses as invalid; the message is the server's text."""


class ServedAnswers:
    """The signatures of an artifact that the server answers without the whole graph, as the manifest describes them.

    A signature that the server runs as a whole graph in TensorFlow is not among them. Concurrency: one caller at a
    time.

    specs: every signature of the artifact, with the facts of the manifest.

    Raises:
      ArtifactError: manifest and files do not agree.
    """

    def __init__(self, artifact: Path, manifest: Manifest) -> None:
        if missing_core():
            # The reference answers there, which runs every graph whole.
            opened: Model | Servable = reference_of(artifact, manifest)
        else:
            tags = frozenset(SERVE)
            lookups = open_lookups(artifact, manifest, read_signatures(artifact / "saved_model.pb", tags))
            entries = lookups.fitting(manifest).signatures
            cut = {n: lookups.signatures[n] for n, e in entries.items() if e.kind == "predict" and e.run == "cut"}
            opened = cut_servable(artifact, manifest, lookups, cut, tags)
            if opened.native is None:
                raise ArtifactError(f"the core can not run {artifact}: {'; '.join(opened.not_run.values())}")
        self._opened = opened
        self.specs: Mapping[str, SignatureSpec] = opened.signatures

    def __enter__(self) -> ServedAnswers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def has(self, signature: str) -> bool:
        """Says whether the server answers a signature with code of its own."""
        if isinstance(self._opened, Model):
            return signature in self._opened.lookups
        return signature in self._opened.backends and signature not in self._opened.not_run

    def run(
        self, signature: str, inputs: Mapping[str, Array], outputs: tuple[str, ...] | None = None
    ) -> dict[str, Array]:
        """Answers a request with the named outputs, by default all.

        Raises:
          ServedRefusedError: the server refuses the request. Any other ServiceError: a failure that is not the
            request's.
        """
        try:
            return self._answer(signature, inputs, outputs or ())
        except InvalidRequest as error:
            raise ServedRefusedError(error.message) from error

    def _answer(self, signature: str, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> dict[str, Array]:
        if isinstance(self._opened, Model):
            return self._opened.run(self.specs[signature], lambda: inputs, output_filter=outputs)
        assert self._opened.native is not None
        return self._opened.native.run(signature, inputs, outputs)
