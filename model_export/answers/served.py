"""Makes requests at the edges of a graph, and answers requests as the server does, in its native core.

Edges are keys and ids next to the graph's constants, its vocabularies and the limits of dtypes: a description of a
lookup that is wrong for few keys is wrong for keys that the graph treats apart. Where no core is installed, the
reference answers lookups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_export.graphs.signature_runner import SERVE, constant_arrays
from service.artifact.manifest import Manifest
from service.artifact.signature_def import read_signatures
from service.errors import ArtifactError, InvalidRequest
from service.graph.probes import near_texts
from service.process.trial import cut_servable, missing_core, reference_of
from service.reference.models import Model
from service.tables.backend import open_lookups
from service.types import Array, SignatureSpec
from service.versions.servable import Servable

# Largest number of elements of a constant that is read, of bytes of a string, and of constants of one kind.
_MOST_ELEMENTS, _MOST_BYTES, _MOST_CONSTANTS = 8, 40, 64
# Number of a vocabulary's keys of which changed forms are made.
_CHANGED_KEYS = 6


@dataclass(frozen=True, slots=True)
class Constants:
    """The distinct integers and strings that a SavedModel's graph holds in small constants."""

    integers: tuple[int, ...] = ()
    strings: tuple[bytes, ...] = ()

    @staticmethod
    def of(artifact: Path) -> Constants:
        integers: set[int] = set()
        strings: set[bytes] = set()
        for array in constant_arrays(artifact, _MOST_ELEMENTS):
            if array.dtype.kind in "iu":
                integers.update(int(number) for number in array.reshape(-1))
            elif array.dtype.kind == "O":
                strings.update(array.reshape(-1).tolist())
        texts = sorted((text for text in strings if len(text) <= _MOST_BYTES), key=len)
        # The largest integers and the shortest strings are taken: 0 and 1 are tried anyway, long texts are messages.
        return Constants(tuple(sorted(integers, key=abs)[-_MOST_CONSTANTS:]), tuple(texts[:_MOST_CONSTANTS]))


def edge_ids(size: int, dtype: Any, constants: Constants) -> Array:
    """Returns row numbers at and next to the limits of a table and of a dtype, and to the graph's constants."""
    is_whole = np.dtype(dtype).kind in "iu"
    # Integers up to 2^24 are exact in float32, in which Keras' default Input takes ids.
    lowest, highest = (np.iinfo(dtype).min, np.iinfo(dtype).max) if is_whole else (-(2**24), 2**24)
    near = {n + d for n in (0, size - 1, *constants.integers) for d in (-1, 0, 1)} | {lowest, highest}
    return np.array(sorted(n for n in near if lowest <= n <= highest), dtype)


def edge_keys(known: Sequence[bytes], constants: Constants) -> list[bytes]:
    texts = [b"", b" ", b"0", b"-1", b"nan", *near_texts([*known[:_CHANGED_KEYS], *known[-2:]], constants.strings)]
    return [*dict.fromkeys(texts)]


def edge_key_numbers(known: Iterable[int], constants: Constants) -> Array:
    numbers = [*known]
    near = {n + d for n in (0, *numbers[:_CHANGED_KEYS], *numbers[-2:], *constants.integers) for d in (-1, 0, 1)}
    limits = np.iinfo(np.int64)
    inside = (n for n in near | {limits.min, limits.max} if limits.min <= n <= limits.max)
    return np.array(sorted(inside), np.int64)


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

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def has(self, signature: str) -> bool:
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
