"""Draws random requests for a signature, by the kinds of inputs that its model declares; some have a bad id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from loadtest.foreign.kinds import Draw, Edges, ExampleEdges, InputSpec, Key, Kind, Tensors

_MOST_ROWS = 64
# Share of the random requests that have no row, and share of those that have an id outside its table.
_NO_ROWS, _BAD_ID = 0.01, 0.04
# Share of bad requests if the model lists keys that TensorFlow refuses: each of them should be sent.
_BAD_KEY = 0.25


class NoKind(Exception):
    """Raised if a model declares no kind for an input of its signature."""


@dataclass(frozen=True, slots=True)
class RandomRequests:
    """Generator of random requests for one signature.

    Args:
      specs: the signature's inputs by name.
      kinds: input name -> kind; "*" is for all other inputs that hold numbers or strings.
      scale: factor on the rows of the model's tables.
    """

    specs: Mapping[str, InputSpec]
    kinds: Mapping[str, Kind]
    scale: int
    seed: int

    def draw(self, count: int) -> Iterator[Tensors]:
        """Yields requests of 1 to 64 rows; a few have no rows, and a few have an id outside its table.

        Raises:
          NoKind: the model declares no kind for one of the signature's inputs.
        """
        rng = np.random.default_rng(self.seed)
        kinds = self._kinds()
        with_ids = [name for name, kind in kinds.items() if kind.has_ids]
        share = _BAD_KEY if any(isinstance(kind, Edges | ExampleEdges) for kind in kinds.values()) else _BAD_ID
        for number in range(count):
            num_rows = 0 if rng.random() < _NO_ROWS else int(rng.integers(1, _MOST_ROWS + 1))
            bad = str(rng.choice(with_ids)) if with_ids and rng.random() < share else ""
            yield self._one(Draw(rng, num_rows, self.scale, bad, number))

    def row(self, tensors: Tensors, number: int) -> str:
        return "; ".join(kind.row(name, tensors, number) for name, kind in self._kinds().items())

    def of_key(self, only: Mapping[str, Key]) -> Tensors:
        """Returns a request of one row, in which an input has this key alone."""
        return self._one(Draw(np.random.default_rng(self.seed), 1, self.scale, "", only=only))

    def of_rows(self, num_rows: int, count: int) -> list[Tensors]:
        """Returns `count` random valid requests of `num_rows` rows each."""
        rng = np.random.default_rng([self.seed, num_rows])
        return [self._one(Draw(rng, num_rows, self.scale, "", number)) for number in range(count)]

    def _one(self, draw: Draw) -> Tensors:
        tensors: Tensors = {}
        for name, kind in self._kinds().items():
            tensors |= kind.tensors(name, self.specs, draw)
        if missing := self.specs.keys() - tensors.keys():
            raise NoKind(f"the model declares nothing of the inputs {sorted(missing)}")
        return tensors

    def _kinds(self) -> dict[str, Kind]:
        named = {name: kind for name, kind in self.kinds.items() if name in self.specs}
        if "*" in self.kinds:
            others = self.specs.keys() - named.keys()
            named |= dict.fromkeys(sorted(others), self.kinds["*"])
        return named


def judged(
    kinds: Mapping[str, Kind],
    signatures: Mapping[str, Mapping[str, InputSpec]],
    is_answered: Callable[[str, Tensors], bool],
) -> dict[str, Kind]:
    """Returns the kinds with all listed keys sorted into those that TensorFlow answers, and those that it refuses.

    Args:
      signatures: signature -> its inputs; the signature named as an input, or else the first that has it, is asked.
      is_answered: asks TensorFlow for a signature's answer to a request with one key.
    """

    def ask(only: Mapping[str, Key]) -> bool:
        (name,) = only
        having = [signature for signature, specs in signatures.items() if name in specs]
        signature = name if name in signatures else having[0]
        requests = RandomRequests(signatures[signature], kinds, 1, 0)
        return is_answered(signature, requests.of_key(only))

    return {name: kind.judged(name, ask) for name, kind in kinds.items()}
