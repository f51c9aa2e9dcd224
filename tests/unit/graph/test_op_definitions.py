"""The definitions of ops that the native core reads from TensorFlow's library are those of its Python package."""

from __future__ import annotations

from typing import Any

import pytest

from service.graph.library import op_definition

pytestmark = pytest.mark.tf


@pytest.mark.core
def test_the_core_knows_the_ops_of_tensorflow(tf: Any) -> None:
    from tensorflow.python.framework import op_def_registry

    names = [name for name in dir(tf.raw_ops) if not name.startswith("_")]
    assert len(names) > 1000
    wanted = {name: op_def_registry.get(name) for name in names}
    for name, theirs in wanted.items():
        ours = op_definition(name)
        assert (ours is None) == (theirs is None), name
        if ours is not None and theirs is not None:
            assert ours.is_stateful == theirs.is_stateful, name
            assert [output.SerializeToString() for output in ours.output_arg] == [
                output.SerializeToString() for output in theirs.output_arg
            ], name
    assert op_definition("NoSuchOperation") is None
