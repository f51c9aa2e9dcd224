"""Random foreign models are reproducible, and their requests have the keys at the edges of their construction."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from loadtest.foreign.kinds import Draw, Edges, InputSpec, RandomRequests, edge_keys, judged
from loadtest.foreign.random_models import (
    AsText,
    CastTo,
    Clipped,
    Construction,
    Hashed,
    KerasLayer,
    Key,
    Masked,
    Modulo,
    Recased,
    Replaced,
    Retired,
    Shifted,
    Step,
    Vocabulary,
    construction_of,
    edges_of,
    random_name,
)

IDS = InputSpec(np.dtype(np.int64), (-1,))


def _made(seed: int, number: int) -> Construction:
    found = construction_of(random_name(seed, number))
    assert found is not None
    return found


def test_a_name_alone_decides_a_model() -> None:
    assert [_made(7, number) for number in range(50)] == [_made(7, number) for number in range(50)]
    assert _made(7, 1) != _made(8, 1)
    assert construction_of("keras3_string_lookup") is None


def test_each_ingredient_is_drawn() -> None:
    made = [_made(1, number) for number in range(600)]
    features = [feature for one in made for feature in one.features]
    steps = Counter(type(step).__name__ for feature in features for step in feature.steps)
    assert {one.framework for one in made} == {"module", "session", "keras3", "tf_keras", "columns"}
    assert {one.tower for one in made} == {"none", "concat", "dense", "dot", "cosine"}
    assert {table.dtype for one in made for table in one.tables} == {"float32", "float16", "bfloat16", "float64"}
    assert max(table.rows for one in made for table in one.tables) >= 2**22 > 1
    assert min(table.rows for one in made for table in one.tables) <= 2
    assert any(table.parts > 1 for one in made for table in one.tables)
    assert any(feature.max_norm for feature in features)
    assert any(feature.weights for feature in features)
    assert len(steps) >= 20, steps


@pytest.mark.parametrize(
    ("steps", "last", "wanted"),
    [
        ((Masked(b"nan", 0, 1, Hashed(19)),), (0,), {b"nan", b"NAN", b"nan "}),
        ((Retired(417, 3),), (0,), {416, 417, 418, 3}),
        ((AsText(), Masked(b"-1", 0, 1, Hashed(19))), (0,), {-1}),
        ((Shifted(100), Retired(417, 3)), (0, 999), {317, 899}),
        ((Clipped(0, 63),), (), {-1, 0, 62, 63, 64}),
        ((Modulo(7),), (3,), {3, 24, 7, 8}),
        ((CastTo("int32"),), (5,), {5, 2**32 + 5, 2**31, -(2**31) - 1}),
        ((Replaced("-", "", (b"-",)), Vocabulary((b"ab12", b"x"), 1, 0)), (1,), {b"-ab12", b"ab-12", b"x-"}),
        ((Recased("lower"), Retired(b"[PAD]", b"a")), (), {b"[pad]", b"[PAD]", b"A"}),
        (
            (KerasLayer("StringLookup", (("vocabulary", (b"a",)), ("mask_token", b"[PAD]"))),),
            (),
            {b"a", b"A", b"[PAD]"},
        ),
    ],
)
def test_the_edges_of_a_chain_are_keys_of_its_input(
    steps: tuple[Step, ...], last: tuple[Key, ...], wanted: set[Key]
) -> None:
    assert wanted <= set(edges_of(steps, last))


def test_keys_that_a_dtype_cannot_hold_are_left_out() -> None:
    assert {0, 255, 7} <= set(edge_keys((7, 256, -1, b"x"), "uint8")) <= set(range(256))
    assert {2**63 - 1, -(2**63)} <= set(edge_keys((), "int64"))
    assert {b"", b"\xff\xfe", b"k"} <= set(edge_keys((b"k", 3), "string"))


def test_each_answered_key_is_sent_by_itself_first_and_in_the_first_requests() -> None:
    kinds = {"key": Edges(tuple(range(200)))}
    alone = []

    def is_answered(signature: str, tensors: dict[str, np.ndarray]) -> bool:
        alone.extend(tensors["key"].tolist())
        return bool((tensors["key"] < 150).all())

    found = judged(kinds, {"serving_default": {"key": IDS}}, is_answered)
    assert alone == list(range(200))
    sent = [tensors["key"] for tensors in RandomRequests({"key": IDS}, found, 1, 5).draw(120)]
    refused = [(keys >= 150).sum() for keys in sent]
    assert set(np.concatenate(sent).tolist()) >= set(range(150))
    # A refused key would hide a wrong answer to another key of its request.
    assert set(refused) == {0, 1}
    assert 10 < sum(refused) < 60


def test_the_row_of_a_ragged_request_is_told_with_its_weights() -> None:
    kind = Edges((5, 6), splits="splits", weights="weights")
    specs = {"key": IDS, "splits": IDS, "weights": InputSpec(np.dtype(np.float32), (-1,))}
    tensors = kind.tensors("key", specs, Draw(np.random.default_rng(3), 4, 1, ""))
    first, last = tensors["splits"][2:4].tolist()
    keys, weights = tensors["key"][first:last].tolist(), tensors["weights"][first:last].tolist()
    assert kind.row("key", tensors, 2) == f"key={keys} weights={weights}"
