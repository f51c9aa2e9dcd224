"""TensorFlow, JAX and Keras are imported when a test needs them, and not while tests are collected."""

from __future__ import annotations

import sys

from tests.conftest import HEAVY_IMPORTS
from tests.unit.model_export.late import Late, late

with late():
    import pyclbr
    from tabnanny import format_witnesses


def test_no_file_imports_them_while_it_is_collected() -> None:
    assert HEAVY_IMPORTS == {}


def test_names_of_the_block_are_imported_at_their_first_use() -> None:
    assert isinstance(pyclbr, Late) and isinstance(format_witnesses, Late)
    assert not {"pyclbr", "tabnanny"} & sys.modules.keys()
    assert format_witnesses([(4,)]) == "at tab size 4"
    assert pyclbr.Class is sys.modules["pyclbr"].Class
