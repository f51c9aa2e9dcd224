"""Operators change labels and pins of single models, in a model set that only keeps its list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from service.configuration.settings import Settings
from service.engine.model_config import Latest, ModelConfig, Specific
from service.engine.model_set import ModelSet
from service.errors import ConfigConflict, ModelNotFound, VersionNotFound
from service.process.model_lists import ModelLists


class KeptModels:
    """A stand-in for ModelSet with the parts that ModelLists uses; each model has folders of versions 1 to 3."""

    def __init__(self) -> None:
        self.configs = tuple(ModelConfig(name, f"/models/{name}", Latest(2)) for name in ("a", "b"))

    def folder(self, name: str, version: int) -> Path:
        """See ModelSet.folder."""
        if version not in (1, 2, 3):
            raise VersionNotFound(f"no folder of version {version}")
        return Path(f"/models/{name}/{version}")

    def reload(
        self, configs: Sequence[ModelConfig], deadline_s: float | None = None, agree: Callable[[], None] = lambda: None
    ) -> None:
        """See ModelSet.reload."""
        agree()
        self.configs = tuple(configs)


@pytest.fixture
def models() -> KeptModels:
    return KeptModels()


@pytest.fixture
def lists(models: KeptModels) -> ModelLists:
    return ModelLists(Settings(model_base_path="/models"), cast(ModelSet, cast(Any, models)))


def test_a_pin_is_kept_over_labels_and_ends_with_the_first_policy(models: KeptModels, lists: ModelLists) -> None:
    lists.pin("a", 1)
    lists.set_label("a", "stable", 1)
    lists.pin("a", 2)
    first, other = models.configs
    assert (first.policy, first.labels, other.policy) == (Specific(frozenset({2})), {"stable": 1}, Latest(2))
    lists.pin("a", None)
    assert (models.configs[0].policy, models.configs[0].labels) == (Latest(2), {"stable": 1})
    with pytest.raises(ConfigConflict, match='Model "a" is not pinned'):
        lists.pin("a", None)


def test_a_new_list_ends_a_pin(models: KeptModels, lists: ModelLists) -> None:
    lists.pin("a", 1)
    lists.reload([ModelConfig("a", "/models/a", Specific(frozenset({1})))])
    with pytest.raises(ConfigConflict):
        lists.pin("a", None)
    lists.pin("a", 3)
    lists.pin("a", None)
    assert models.configs[0].policy == Specific(frozenset({1}))


def test_a_version_without_a_folder_changes_nothing(models: KeptModels, lists: ModelLists) -> None:
    before = models.configs
    with pytest.raises(VersionNotFound):
        lists.pin("a", 9)
    with pytest.raises(ModelNotFound):
        lists.pin("none", 1)
    assert models.configs == before
