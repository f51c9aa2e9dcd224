"""Makes names for tables and features from the names of variables and inputs in the adopted model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_ATTRIBUTE = "/.ATTRIBUTES/VARIABLE_VALUE"
# Last parts of variable names that occur in layers of every kind, so a table is not named after them.
_KINDS = re.compile(
    r"(embeddings?|embedding_weights|weights?|table|variable|_?kernel|value)(_\d+)?(:0)?$", re.IGNORECASE
)
_NAMELESS = re.compile(r"variable(_\d+)?$", re.IGNORECASE)

# Names that Keras and TensorFlow make up for inputs without a name.
_NAMELESS_INPUT = re.compile(r"(keras_tensor|inputs?|input_layer|args)(_\d+)*$")


def table_names(keys: Iterable[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Makes a table name for each given checkpoint key; no two keys get the same name.

    Args:
      variables: checkpoint key -> the variable's name in the graph.

    >>> table_names(["_operations/2/_embeddings/.ATTRIBUTES/VARIABLE_VALUE"],
    ...             {"_operations/2/_embeddings/.ATTRIBUTES/VARIABLE_VALUE": "user_emb/embeddings_1"})
    {'_operations/2/_embeddings/.ATTRIBUTES/VARIABLE_VALUE': 'user_emb'}
    >>> table_names(["user/.ATTRIBUTES/VARIABLE_VALUE"], {"user/.ATTRIBUTES/VARIABLE_VALUE": "Variable_3"})
    {'user/.ATTRIBUTES/VARIABLE_VALUE': 'user'}
    """
    found: dict[str, str] = {}
    for key in sorted(keys):
        given = variables.get(key, "")
        path = key.removesuffix(_ATTRIBUTE)
        name = _plain(path if _NAMELESS.match(given) or not given else given)
        found[key] = unique(name, set(found.values()))
    return found


def unique(name: str, taken: set[str]) -> str:
    """Returns a name that is not in `taken`: the given name, or the given name with a number appended."""
    number, found = 2, name
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def is_nameless_input(name: str) -> bool:
    """Says whether Keras or TensorFlow made up the name of an input, because the user gave none.

    >>> is_nameless_input("keras_tensor_3"), is_nameless_input("args_0_1"), is_nameless_input("input_ids")
    (True, True, False)
    """
    return _NAMELESS_INPUT.match(name) is not None


def valid(name: str) -> str:
    """Makes a name of letters, digits and _ that starts with a letter.

    >>> valid("user id"), valid("2nd")
    ('user_id', 'n2nd')
    """
    cleaned = re.sub(r"\W+", "_", name).strip("_") or "table"
    return cleaned if cleaned[0].isalpha() else f"n{cleaned}"


def _plain(path: str) -> str:
    parts = [part for part in path.split("/") if part and not part.lstrip("_").isdigit()]
    if len(parts) > 1 and _KINDS.match(parts[-1].lstrip("_")):
        parts.pop()
    return valid(parts[-1] if parts else "")
