"""Explains which inputs of a request do not fit: by their shapes, or by an id that a graph has refused.

TensorFlow's texts name nodes of the graph, which a client does not know.
"""

from __future__ import annotations

import re

import numpy as np

from service.types import Array, SignatureSpec, Tensors, TensorSpec

# TensorFlow's text for an index without a row, of its ops Gather and SparseSegmentSum.
_BAD_INDEX = re.compile(r"indices\[[\d, ]*\] ==? (-?\d+) (?:is not in|out of range) \[0, ")


def shape_fault(tensor: TensorSpec, array: Array) -> str:
    """Returns the sentence for an input whose shape contradicts the signature; "" if the shape agrees with it.

    >>> shape_fault(TensorSpec("age", "float32", (None, 1)), np.ones(1, np.float32))
    'input "age": the signature declares [?, 1], the request has [1].'
    """
    wanted = tensor.shape
    if wanted is None or (
        len(wanted) == array.ndim and all(size in (None, sent) for size, sent in zip(wanted, array.shape, strict=True))
    ):
        return ""
    declared = ", ".join("?" if size is None else str(size) for size in wanted)
    return f'input "{tensor.name}": the signature declares [{declared}], the request has {list(array.shape)}.'


def shape_faults(spec: SignatureSpec, inputs: Tensors) -> str:
    """Returns the sentences for all inputs whose shapes contradict the signature; "" if there are none."""
    found = (shape_fault(spec.inputs[name], array) for name, array in inputs.items() if name in spec.inputs)
    return " ".join(filter(None, found))


def explained(text: str, spec: SignatureSpec, inputs: Tensors) -> str:
    """Returns the text by which a graph refused a request, and behind it the inputs that may be the reason.

    Args:
      text: TensorFlow's text, which stays as it is.
      inputs: the request's inputs.
    """
    return "; ".join(filter(None, (text, shape_faults(spec, inputs), _bad_id(text, inputs))))


def _bad_id(text: str, inputs: Tensors) -> str:
    """Returns the sentence for the only input that has the id which TensorFlow's text names; "" if none is known.

    The graph may have computed the id, so the sentence says no more than that the input has this number.
    """
    found = _BAD_INDEX.search(text)
    if not found:
        return ""
    bad = int(found[1])
    integers = {name: array for name, array in inputs.items() if array.dtype.kind in "iu"}
    places = {name: np.flatnonzero(array == bad) for name, array in integers.items()}
    having = {name: places[name] for name in places if places[name].size}
    if len(having) != 1:
        return ""
    (name,) = having
    return f'input "{name}": has {bad} at position {int(having[name][0])}.'
