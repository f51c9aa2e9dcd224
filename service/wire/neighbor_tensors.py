"""Converts the tensors of a Predict request with the signature "neighbors" to a search, and its answer to tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from service.errors import InputMismatch, UnknownOutput
from service.types import Array, Tensors
from service.versions.neighbors import (
    DEFAULT_K,
    DEFAULT_METRIC,
    METRICS,
    Named,
    NeighborAnswer,
    NeighborQuery,
)

_INTEGERS = frozenset({"int64", "int32"})
# Input of the signature "neighbors" -> its rank and allowed dtypes; the dtype "object" means strings.
_INPUTS: Mapping[str, tuple[int, frozenset[str]]] = {
    "table": (0, frozenset({"object"})),
    "ids": (1, _INTEGERS),
    "keys": (1, _INTEGERS | {"object"}),
    "vectors": (2, frozenset({"float32", "float64", "float16"})),
    "k": (0, _INTEGERS),
    "metric": (0, frozenset({"object"})),
    "feature": (0, frozenset({"object"})),
    "filter_ids": (1, _INTEGERS),
    "filter_keys": (1, _INTEGERS | {"object"}),
    "exclude_ids": (1, _INTEGERS),
    "exclude_keys": (1, _INTEGERS | {"object"}),
    "include_self": (0, frozenset({"bool"})),
    "exact": (0, frozenset({"bool"})),
    "labels": (0, frozenset({"bool"})),
}
# Rank and dtypes of "labels" that are queries; a bool only asks for the labels of the found rows.
_LABELS = (1, frozenset({"object"}))


def decode_search(inputs: Tensors) -> tuple[str, NeighborQuery]:
    """Decodes the inputs of the signature "neighbors" to the name of a table and a search for its nearest rows.

    A scalar may come as a tensor of one element.

    Raises:
      InputMismatch: an input is unknown, missing, or of a wrong dtype or rank.
    """
    unknown = sorted(inputs.keys() - _INPUTS.keys())
    if unknown or "table" not in inputs:
        what = f"unknown inputs: {', '.join(unknown)}" if unknown else 'input "table" is missing'
        raise InputMismatch(f'signature "neighbors": {what}. Its inputs are: {", ".join(_INPUTS)}.')
    arrays = {name: _checked(name, array) for name, array in inputs.items()}
    labels = arrays["labels"].tolist() if "labels" in arrays else False
    by_label = [label.decode(errors="replace") for label in labels] if isinstance(labels, list) else None
    if len(arrays.keys() & {"ids", "keys", "vectors"}) + (by_label is not None) != 1:
        raise InputMismatch('signature "neighbors": send one of "ids", "keys", "vectors" and "labels".')
    metric = _text(arrays, "metric", DEFAULT_METRIC)
    chosen = next((known for known in METRICS if known == metric), None)
    if chosen is None:
        raise InputMismatch(f'input "metric" is {metric!r}, expected one of: {", ".join(METRICS)}.')
    return _text(arrays, "table", ""), NeighborQuery(
        rows=Named(arrays.get("ids"), arrays.get("keys")),
        vectors=arrays.get("vectors"),
        k=int(arrays["k"]) if "k" in arrays else DEFAULT_K,
        metric=chosen,
        feature=_text(arrays, "feature", ""),
        allowed=Named(arrays.get("filter_ids"), arrays.get("filter_keys")),
        denied=Named(arrays.get("exclude_ids"), arrays.get("exclude_keys")),
        include_self=bool(arrays.get("include_self", False)),
        exact=bool(arrays.get("exact", False)),
        labels=by_label,
        wants_labels=bool(labels),
    )


def encode_answer(answer: NeighborAnswer, output_filter: tuple[str, ...] = ()) -> dict[str, Array]:
    """Returns a search's outputs: ids [Q, k] int64, scores [Q, k] float32, and keys and labels [Q, k] if there are any.

    After a query's last neighbour come the id -1, the score NaN, an empty key and label. Integer keys are decimal text.

    Raises:
      UnknownOutput: the answer has no such output.
    """
    outputs = {"ids": answer.ids, "scores": answer.scores}
    if answer.keys is not None:
        outputs["keys"] = _texts(answer.keys.reshape(-1).tolist()).reshape(answer.keys.shape)
    if answer.labels is not None:
        outputs["labels"] = _texts([label for row in answer.labels for label in row]).reshape(answer.ids.shape)
    for name in output_filter:
        if name not in outputs:
            known = ",".join(sorted(outputs))
            raise UnknownOutput(
                f"output tensor alias not found in signature: {name} Outputs expected to be in the set {{{known}}}."
            )
    return {name: array for name, array in outputs.items() if not output_filter or name in output_filter}


def _texts(names: Sequence[bytes | str | int | None]) -> Array:
    texts = (b"" if name is None else name if isinstance(name, bytes) else str(name).encode() for name in names)
    return np.array([*texts], object)


def _checked(name: str, array: Array) -> Array:
    rank, dtypes = _LABELS if name == "labels" and array.dtype == object else _INPUTS[name]
    if rank == 0 and array.size == 1:
        array = array.reshape(())
    if array.ndim != rank or array.dtype.name not in dtypes:
        wanted = " or ".join("string" if dtype == "object" else dtype for dtype in sorted(dtypes))
        got = "string" if array.dtype == object else array.dtype.name
        raise InputMismatch(
            f'input "{name}": got {got} of rank {array.ndim}, signature "neighbors" takes {wanted} of rank {rank}.'
        )
    if array.dtype == np.int32:
        return array.astype(np.int64)
    return array.astype(np.float32) if name == "vectors" else array


def _text(arrays: Mapping[str, Array], name: str, default: str) -> str:
    value = arrays.get(name)
    if value is None:
        return default
    found = value.item()
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)
