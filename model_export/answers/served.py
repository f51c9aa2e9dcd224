"""Answers requests as the server does, in its native core: lookups from mapped tables, predictions from graphs without
their lookups.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from model_export.graphs.signature_runner import SERVE
from service.artifact.manifest import Manifest
from service.artifact.signature_def import read_signatures
from service.engine.validation import checked
from service.errors import InvalidRequest
from service.loading.towers import open_towers
from service.process.trial import cut_servable
from service.tables.backend import open_lookups
from service.types import Array, SignatureSpec

_MODEL = "served"


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
        tags = frozenset(SERVE)
        lookups = open_lookups(artifact, manifest, read_signatures(artifact / "saved_model.pb", tags))
        self.specs: Mapping[str, SignatureSpec] = lookups.signatures
        entries = lookups.fitting(manifest).signatures
        cut = {n: self.specs[n] for n, entry in entries.items() if entry.kind == "predict" and entry.run == "cut"}
        self._towers = open_towers(artifact, manifest, lookups, cut, tags, threads=1) if cut else None
        self._servable = cut_servable(_MODEL, lookups, self._towers)

    def __enter__(self) -> ServedAnswers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._towers is not None:
            self._towers.close()

    def has(self, signature: str) -> bool:
        """Says whether the server answers a signature with code of its own."""
        return signature in self._servable.backends

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
        native = self._servable.native
        if native is not None and signature not in self._servable.not_run:
            return native.run(signature, inputs, outputs)
        # The server runs in Python what the native core does not run, and everything without a core.
        arrays, _ = checked(self.specs[signature], dict(inputs))
        wanted = outputs or tuple(self.specs[signature].outputs)
        answer = self._servable.backends[signature].run(signature, arrays, wanted)
        return {output: np.asarray(array) for output, array in answer.items()}
