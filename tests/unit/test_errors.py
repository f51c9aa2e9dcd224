"""Every error has one canonical code and a text of its own."""

from __future__ import annotations

from typing import get_args

import pytest

from service import errors


def leaves(cls: type[errors.ServiceError] = errors.ServiceError) -> list[type[errors.ServiceError]]:
    """Returns the subclasses of an error that have no subclasses."""
    below = cls.__subclasses__()
    return [leaf for child in below for leaf in leaves(child)] if below else [cls]


@pytest.mark.parametrize("cls", leaves())
def test_every_leaf_has_a_canonical_code(cls: type[errors.ServiceError]) -> None:
    assert cls.code in get_args(errors.Code)


@pytest.mark.parametrize("cls", leaves())
def test_every_leaf_stands_in_the_tree_of_the_docstring(cls: type[errors.ServiceError]) -> None:
    assert errors.__doc__ is not None
    assert errors.__doc__.split().count(cls.__name__) == 1


def test_only_a_fault_of_ours_is_internal() -> None:
    assert [cls for cls in leaves() if cls.code == "INTERNAL"] == [errors.BackendFailure]


def test_message_is_the_text_without_the_class() -> None:
    assert errors.IdOutOfRange("id 7 of 5").message == "id 7 of 5"
    assert errors.IdOutOfRange().message == "IdOutOfRange"
