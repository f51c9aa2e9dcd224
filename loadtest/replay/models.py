"""Writes the models of the corpus, and the configuration file with which a server serves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.live_server import export_demo
from tests.conformance.contract_models import write_half, write_kinds
from tests.mixed_model import write_mixed_model
from tests.tower_zoo import write_zoo_model
from tests.toy_described import write_described_model
from tests.toy_model import write_toy_model
from tests.toy_policies import write_policy_model


def _toy(folder: Path) -> None:
    write_toy_model(folder / "1")
    write_toy_model(folder / "2", scale=10)


def _half(folder: Path) -> None:
    write_half(_tensorflow(), folder / "1", added=100.0)
    write_half(_tensorflow(), folder / "2")


def _tensorflow() -> Any:
    import tensorflow

    return tensorflow


# Lookups with each combiner, policy and vocabulary; signatures of every kind and dtype; dense parts of models that the
# server cuts from their tables (mixed, columns) or runs whole (two_towers has string tables, tags has ragged inputs);
# and the demo.
MODELS: dict[str, Callable[[Path], object]] = {
    "toy": _toy,
    "policies": lambda folder: write_policy_model(folder / "1"),
    "described": lambda folder: write_described_model(folder / "1"),
    "half": _half,
    "kinds": lambda folder: write_kinds(_tensorflow(), folder / "1"),
    "mixed": lambda folder: write_mixed_model(_tensorflow(), folder / "1"),
    "columns": lambda folder: write_zoo_model(_tensorflow(), "columns", folder),
    "two_towers": lambda folder: write_zoo_model(_tensorflow(), "two_towers", folder),
    "tags": lambda folder: write_zoo_model(_tensorflow(), "tags", folder),
    "movielens": export_demo,
}


def write_models(folder: Path, names: Sequence[str]) -> None:
    """Writes the named models into a folder; an existing model stays."""
    for name in names:
        if not (folder / name).exists():
            MODELS[name](folder / name)


def write_config(models: Path, file: Path) -> Path:
    """Writes a configuration file that serves every version of all models in a folder; label "stable" is version 1."""
    configs = [
        f'config {{ name: "{model.name}" base_path: "{model.resolve()}" model_platform: "tensorflow" '
        'model_version_policy { all {} } version_labels { key: "stable" value: 1 } }'
        for model in sorted(models.iterdir())
    ]
    file.write_text(f"model_config_list {{ {' '.join(configs)} }}")
    return file
