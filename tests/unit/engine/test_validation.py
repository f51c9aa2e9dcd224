"""Requests are refused for every way in which they can fail to fit their signature, and else pass."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from service.engine.validation import checked, dtype_name
from service.errors import IdOutOfRange, InputMismatch, ServiceError
from service.types import Array, SignatureSpec, TensorSpec, ragged_features


class Letters:
    """A vocabulary of letters: row 0 for b"a", row 1 for b"b" and so on."""

    key_dtype: Literal["string"] = "string"
    example_key = b"a"

    def ids_of(self, keys: Array, input_name: str) -> Array:
        """Maps single letters."""
        return np.array([key[0] - 97 for key in keys.reshape(-1)], np.int64).reshape(keys.shape)


def spec(kind: str, **inputs: TensorSpec) -> SignatureSpec:
    """Returns a signature of this kind with these inputs and one output."""
    return SignatureSpec(
        name="s",
        kind=kind,  # type: ignore[arg-type]
        method_name="",
        inputs=inputs,
        outputs={"y": TensorSpec("y", "float32", None)},
        ragged_names=ragged_features(inputs),
    )


def id_tensor(name: str, dtype: str = "int64", **more: Any) -> TensorSpec:
    """Returns an id input of a table of five rows."""
    return TensorSpec(name, dtype, (None,), f"{name}:0", vocabulary_size=5, **more)


def lookup(dtype: str = "int64") -> SignatureSpec:
    """Returns the signature of a lookup with features `user` and `tags`; `tags` is ragged and has weights."""
    optional = {"is_optional": True}
    return spec(
        "lookup",
        user=id_tensor("user", dtype, **optional),
        tags__values=id_tensor("tags__values", dtype, vocabulary=Letters(), **optional),
        tags__row_splits=TensorSpec("tags__row_splits", "int64", (None,), **optional),
        tags__weights=TensorSpec("tags__weights", "float32", (None,), **optional),
    )


def predict() -> SignatureSpec:
    """Returns a predict over ids that a manifest describes."""
    return spec(
        "predict",
        user=id_tensor("user"),
        tags__values=id_tensor("tags__values", vocabulary=Letters()),
        tags__row_splits=TensorSpec("tags__row_splits", "int64", (None,)),
    )


class Tens:
    """A vocabulary of integers: row 1 for 10, row 2 for 20 and so on; other keys are to be dropped."""

    key_dtype: Literal["int64"] = "int64"
    example_key = 10

    def ids_of(self, keys: Array, input_name: str) -> Array:
        """Divides by ten."""
        return np.where(keys % 10 == 0, keys // 10, -1)


def keyed(kind: str, id_dtype: str = "int64") -> SignatureSpec:
    """Returns a signature over keys: integers `code`, strings `word` and ragged strings `words`."""
    return spec(
        kind,
        code=id_tensor("code", id_dtype, vocabulary=Tens(), is_optional=kind == "lookup"),
        word=id_tensor("word", "string", vocabulary=Letters(), is_optional=kind == "lookup"),
        words__values=id_tensor("words__values", "string", vocabulary=Letters(), is_optional=kind == "lookup"),
        words__row_splits=TensorSpec(
            "words__row_splits", "int64", (None,), "words__row_splits:0", is_optional=kind == "lookup"
        ),
    )


def foreign(**inputs: TensorSpec) -> SignatureSpec:
    """Returns the spec of a predict signature that no manifest describes."""
    return spec("predict", **(inputs or {"x": TensorSpec("x", "float32", (None, 1))}))


def ints(*values: int, dtype: str = "int64") -> Array:
    """Returns ids."""
    return np.array(values, dtype)


def tags(values: Array, *splits: int, weights: Array | None = None, splits_dtype: str = "int64") -> dict[str, Array]:
    """Returns the input tensors of the ragged feature `tags`."""
    arrays = {"tags__values": values, "tags__row_splits": np.array(splits, splits_dtype)}
    return arrays if weights is None else arrays | {"tags__weights": weights}


F1 = np.ones(1, np.float32)

PASSES: dict[str, tuple[SignatureSpec, dict[str, Array], int]] = {
    "one feature": (lookup(), {"user": ints(1, 2)}, 2),
    "features of their own lengths": (lookup(), {"user": ints(1), **tags(ints(1, 2, 3), 0, 1, 3, 3)}, 3),
    "no rows": (lookup(), tags(ints(), 0), 0),
    "empty rows only": (lookup(), tags(ints(), 0, 0, 0), 2),
    "weights": (lookup(), tags(ints(1), 0, 1, weights=F1), 1),
    "weights left empty": (lookup(), tags(ints(1), 0, 1, weights=np.empty(0, np.float32)), 1),
    "int32 splits": (lookup(), tags(ints(1), 0, 1, splits_dtype="int32"), 1),
    "a bad id is the lookup's to judge": (lookup(), {"user": ints(99)}, 1),
    "predict": (predict(), {"user": ints(1, 2), **tags(ints(4), 0, 0, 1)}, 2),
    "predict of no rows": (predict(), {"user": ints(), **tags(ints(), 0)}, 0),
    "foreign shapes are the graph's to judge": (foreign(), {"x": np.ones(2, np.float32)}, 2),
    "foreign scalar": (foreign(), {"x": np.float32(1) * np.ones((), np.float32)}, 1),
    "nothing to send": (spec("predict"), {}, 0),
    "foreign optional left out": (
        foreign(x=TensorSpec("x", "float32", None), w=TensorSpec("w", "float32", None, is_optional=True)),
        {"x": F1},
        1,
    ),
}


@pytest.mark.parametrize(("signature", "inputs", "rows"), PASSES.values(), ids=PASSES.keys())
def test_passes_unchanged_and_counts_rows(signature: SignatureSpec, inputs: dict[str, Array], rows: int) -> None:
    arrays, counted = checked(signature, inputs)
    assert counted == rows
    assert arrays.keys() == inputs.keys()
    for name, array in inputs.items():
        assert np.array_equal(arrays[name], array)
        assert arrays[name].dtype == signature.inputs[name].dtype


REFUSED: dict[str, tuple[SignatureSpec, dict[str, Array], type[ServiceError], str]] = {
    "lookup of nothing": (lookup(), {}, InputMismatch, '^signature "s" needs at least one feature of: tags, user.$'),
    "lookup extra": (
        lookup(),
        {"user": ints(1), "color": ints(1)},
        InputMismatch,
        r"Sent extra: \{color\}\. Features it takes: \{tags, user\}\.$",
    ),
    "values without splits": (
        lookup(),
        {"tags__values": ints(1)},
        InputMismatch,
        r"Missing but required: \{tags__row_splits\}",
    ),
    "splits without values": (
        lookup(),
        {"tags__row_splits": ints(0)},
        InputMismatch,
        r"Missing but required: \{tags__values\}",
    ),
    "weights alone": (
        lookup(),
        {"tags__weights": F1},
        InputMismatch,
        r"Missing but required: \{tags__row_splits, tags__values\}",
    ),
    "predict without anything": (
        foreign(),
        {},
        InputMismatch,
        r"^input size does .* 0!=1 len\(\{\}\) != len\(\{x\}\)\. Sent extra: \{\}\. Missing but required: \{x\}\.$",
    ),
    "predict without a ragged feature": (
        predict(),
        {"user": ints(1)},
        InputMismatch,
        r'Missing but required: \{tags__row_splits,tags__values\}\. In JSON, "tags" stands for tags__values',
    ),
    "predict misnamed": (
        foreign(),
        {"z": F1},
        InputMismatch,
        (
            r"^Signature input alias: x\(feed name: \) not found in request and no default value provided. Inputs "
            r"expected to be in the request \{z\}, or default input alias set: $"
        ),
    ),
    "wrong dtype": (foreign(), {"x": ints(1)}, InputMismatch, r"^Expects arg\[0\] to be float but int64 is provided$"),
    "foreign ints are not widened": (
        foreign(x=TensorSpec("x", "int64", None)),
        {"x": ints(1, dtype="int32")},
        InputMismatch,
        r"^Expects arg\[0\] to be int64 but int32 is provided$",
    ),
    "float ids": (lookup(), {"user": F1}, InputMismatch, 'input "user": expected int64, got float32'),
    "unsigned ids": (lookup(), {"user": ints(1, dtype="uint8")}, InputMismatch, "expected int64, got uint8"),
    "strings without vocabulary": (
        lookup(),
        {"user": np.array([b"a"], object)},
        InputMismatch,
        'input "user": expected int64, got string',
    ),
    "double weights": (
        lookup(),
        tags(ints(1), 0, 1, weights=np.ones(1)),
        InputMismatch,
        'input "tags__weights": expected float32, got float64',
    ),
    "id beyond int32": (
        lookup("int32"),
        {"user": ints(2**31)},
        IdOutOfRange,
        'input "user": a value does not fit int32',
    ),
    "matrix of ids": (
        lookup(),
        {"user": np.ones((2, 3), np.int64)},
        InputMismatch,
        r'^input "user": the signature declares \[\?\], the request has \[2, 3\]\.$',
    ),
    "scalar id": (lookup(), {"user": np.array(1)}, InputMismatch, r"the request has \[\]"),
    "matrix of values": (lookup(), tags(np.ones((1, 1), np.int64), 0, 1), InputMismatch, "the signature declares"),
    "no splits": (lookup(), tags(ints()), InputMismatch, r'input "tags__row_splits": must start with 0, got \[\]'),
    "splits start late": (lookup(), tags(ints(1), 1, 1), InputMismatch, r"must start with 0, got \[1\]"),
    "splits end early": (
        lookup(),
        tags(ints(1, 2), 0, 1),
        InputMismatch,
        '"tags__row_splits": ends at 1, but "tags__values" has 2 values',
    ),
    "splits end late": (lookup(), tags(ints(1), 0, 2), InputMismatch, "ends at 2, but"),
    "splits fall": (lookup(), tags(ints(1, 2), 0, 3, 1, 2), InputMismatch, "must not decrease, got 3 then 1"),
    "splits negative": (lookup(), tags(ints(1), 0, -1, 1), InputMismatch, "must not decrease, got 0 then -1"),
    "too few weights": (
        lookup(),
        tags(ints(1, 2), 0, 2, weights=F1),
        InputMismatch,
        r'input "tags__weights": expected one weight per id \(2\), got \[1\]',
    ),
    "predict id -1": (
        predict(),
        {"user": ints(1, -1), **tags(ints(), 0, 0, 0)},
        IdOutOfRange,
        '^input "user": id -1 at position 1 is out of range, its table has ids 0 to 4.$',
    ),
    "predict id V": (
        predict(),
        {"user": ints(1), **tags(ints(4, 5), 0, 2)},
        IdOutOfRange,
        '^input "tags__values": id 5 at position 1 is out of range',
    ),
    "predict rows differ": (
        predict(),
        {"user": ints(1), **tags(ints(4), 0, 0, 1)},
        InputMismatch,
        '^inputs differ in their number of rows: "tags" has 2, "user" has 1.$',
    ),
}


@pytest.mark.parametrize(("signature", "inputs", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_in_the_clients_terms(
    signature: SignatureSpec, inputs: dict[str, Array], error: type[ServiceError], message: str
) -> None:
    with pytest.raises(error, match=message):
        checked(signature, inputs)


def test_int_ids_of_the_other_width_are_converted() -> None:
    for dtype, sent in (("int64", "int32"), ("int32", "int64")):
        arrays, _ = checked(lookup(dtype), {"user": ints(0, 4, dtype=sent)})
        assert (arrays["user"].dtype, arrays["user"].tolist()) == (dtype, [0, 4])


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("kind", ["object", "bytes"])
def test_strings_become_ids_where_there_is_a_vocabulary(dtype: str, kind: str) -> None:
    strings = np.array([b"c", b"a"], object if kind == "object" else "S1")
    arrays, rows = checked(lookup(dtype), tags(strings, 0, 2))
    assert (arrays["tags__values"].tolist(), arrays["tags__values"].dtype, rows) == ([2, 0], dtype, 1)


def test_predict_maps_strings_and_then_checks_the_ids() -> None:
    arrays, _ = checked(predict(), {"user": ints(0), **tags(np.array([b"b"], object), 0, 1)})
    assert arrays["tags__values"].tolist() == [1]
    with pytest.raises(IdOutOfRange, match='"tags__values": id 25 at position 0'):
        checked(predict(), {"user": ints(0), **tags(np.array([b"z"], object), 0, 1)})


def strings(*values: bytes) -> Array:
    """Returns strings."""
    return np.array(values, object)


def test_a_lookup_maps_keys_of_either_kind() -> None:
    words = {"words__values": strings(b"b", b"z"), "words__row_splits": ints(0, 0, 2)}
    arrays, rows = checked(keyed("lookup"), {"code": ints(20, 7), "word": strings(b"c"), **words})
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "code": [2, -1],
        "word": [2],
        "words__values": [1, 25],
        "words__row_splits": [0, 0, 2],
    }
    assert rows == 2
    assert {arrays[name].dtype for name in ("code", "word", "words__values")} == {np.dtype("int64")}


@pytest.mark.parametrize(("id_dtype", "sent"), [("int64", "int32"), ("int32", "int64"), ("int32", "int32")])
def test_integer_keys_of_the_other_width_are_mapped_too(id_dtype: str, sent: str) -> None:
    arrays, _ = checked(keyed("lookup", id_dtype), {"code": ints(20, 40, dtype=sent)})
    assert arrays["code"].tolist() == [2, 4]


def test_a_predict_gets_its_keys_as_they_were_sent() -> None:
    words = {"words__values": strings(b"b", b"\xff"), "words__row_splits": ints(0, 0, 2)}
    sent = {"code": ints(2**40, -7), "word": strings(b"", b"zz"), **words}
    arrays, rows = checked(keyed("predict"), sent)
    assert rows == 2
    for name, array in sent.items():
        assert np.array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype


@pytest.mark.parametrize(
    ("kind", "name", "sent", "message"),
    [
        ("lookup", "word", ints(1), '^input "word": expected string, got int64.$'),
        ("lookup", "code", strings(b"a"), '^input "code": expected int64, got string.$'),
        ("lookup", "code", np.ones(1, np.float32), '^input "code": expected int64, got float32.$'),
        # TensorFlow's messages name an argument by its number in the graph, in the order of the names: code, word,
        # words__row_splits, ...
        ("predict", "word", ints(1), r"^Expects arg\[1\] to be string but int64 is provided$"),
        ("predict", "code", strings(b"a"), r"^Expects arg\[0\] to be int64 but string is provided$"),
        ("predict", "code", np.ones(1, np.float32), r"^Expects arg\[0\] to be int64 but float is provided$"),
        (
            "lookup",
            "word",
            np.array([[b"a"]], object),
            r'^input "word": the signature declares \[\?\], the request has \[1, 1\]\.$',
        ),
        (
            "predict",
            "word",
            np.array([[b"a"]], object),
            r'^input "word": the signature declares \[\?\], the request has \[1, 1\]\.$',
        ),
    ],
)
def test_keys_of_another_kind_are_refused(kind: str, name: str, sent: Array, message: str) -> None:
    inputs = {"code": ints(10), "word": strings(b"a"), "words__values": strings(), "words__row_splits": ints(0, 0)}
    with pytest.raises(InputMismatch, match=message):
        checked(keyed(kind), inputs | {name: sent})


@pytest.mark.parametrize(("bounds", "refused"), [("both", [-1, 5]), ("upper", [5]), ("none", [])])
def test_a_predict_refuses_ids_that_its_graph_has_no_policy_for(bounds: str, refused: list[int]) -> None:
    signature = spec("predict", user=id_tensor("user", bounds=bounds))
    for sent in (-1, 0, 4, 5):
        if sent in refused:
            with pytest.raises(IdOutOfRange, match=f"id {sent} at position 1"):
                checked(signature, {"user": ints(0, sent)})
        else:
            assert checked(signature, {"user": ints(0, sent)})[0]["user"].tolist() == [0, sent]


def test_described_predict_ids_must_have_the_signatures_rank() -> None:
    with pytest.raises(InputMismatch, match=r'"user": the signature declares \[\?\], the request has \[1, 1\]'):
        checked(predict(), {"user": np.ones((1, 1), np.int64), **tags(ints(), 0, 0)})


def test_the_request_itself_is_never_changed() -> None:
    inputs = {"user": ints(1, dtype="int32")}
    checked(lookup(), inputs)
    assert inputs["user"].dtype == np.int32


def test_a_dtype_that_numpy_lacks_is_compared_by_its_name() -> None:
    signature = foreign(x=TensorSpec("x", "float8_of_the_future", None))
    for sent, name in ((np.ones(1), "double"), (np.ones(1, np.float32), "float")):
        with pytest.raises(InputMismatch, match=f"to be float8_of_the_future but {name} is provided"):
            checked(signature, {"x": sent})


def test_every_kind_of_string_array_is_a_string() -> None:
    assert {dtype_name(np.array(["a"], kind)) for kind in ("O", "S1", "U1")} == {"string"}
