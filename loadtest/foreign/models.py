"""The registry of foreign models, to which each builder function adds its model under a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from loadtest.foreign.kinds import Kind

Builder = Callable[[Path], None]
Keras = Literal["keras3", "tf_keras"]

# Folder beside the versions of an original model, with a SavedModel whose signatures each answer the rows of one
# feature.
GATHERED = "gathered"
MANIFEST = Path("assets.extra/lookup_manifest.json")
# The reason why a model was skipped begins with these words.
SKIPPED = "skipped: "
_FILES = ("keras_models", "module_models", "row_models")


class Skip(Exception):
    """Raised by a builder whose files are not part of this repository and not on this machine."""


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """A model of another framework, as its builder function registers it for the load test.

    build: writes the SavedModel into a folder that does not exist yet; raises Skip.
    keras: the version of Keras that tf.keras must be in the builder's process.
    inputs: input name -> kind of random values, for all signatures.
    words: what a random model consists of; "" for a model whose builder says it.
    """

    name: str
    build: Builder
    keras: Keras
    inputs: Mapping[str, Kind]
    words: str = ""


class Zoo(dict[str, ForeignModel]):
    """The registered foreign models by name, in the order of their files."""

    def add(self, name: str, inputs: Mapping[str, Kind], build: Builder, *, keras: Keras = "keras3") -> None:
        self.put(ForeignModel(name, build, keras, inputs))

    def put(self, model: ForeignModel) -> None:
        """Registers a foreign model; raises ValueError if another model has the name."""
        if model.name in self:
            raise ValueError(f"two models are named {model.name!r}")
        self[model.name] = model

    def foreign(self, inputs: Mapping[str, Kind], *, keras: Keras = "keras3") -> Callable[[Builder], Builder]:

        def register(build: Builder) -> Builder:
            self.add(build.__name__, inputs, build, keras=keras)
            return build

        return register


ZOO = Zoo()


def model_named(name: str) -> ForeignModel:
    """Returns a registered model, or the random model of this name; raises KeyError if there is none."""
    from loadtest.foreign.random_building import random_model

    return random_model(name) or all_models()[name]


def all_models() -> dict[str, ForeignModel]:
    """Imports the modules that register foreign models, and returns all registered models by name."""
    for file in _FILES:
        import_module(f"loadtest.foreign.{file}")
    return ZOO
