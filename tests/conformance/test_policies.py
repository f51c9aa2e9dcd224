"""Compares the metadata and random lookups of a model of manifest format 2 over every wire."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import oracle
from tests.conformance.wires import HttpClient, Request, Wire
from tests.integration.process import ServerProcess
from tests.toy_policies import WORDS, policy_tables


def test_tables_in_both_files_are_listed_and_read(http: HttpClient) -> None:
    status, answer = http.request("GET", "/v1/models/policies/tables")
    assert status == 200
    told = {
        table["name"]: (table["vocabulary_size"], table["embedding_dim"], table["nbytes"]) for table in answer["tables"]
    }
    assert told == {"item": (9, 2, 72), "tag": (4, 3, 48)}
    assert {"word", "code", "word_path"} <= set(answer["tables"][0]["features"])
    assert http.post("/v1/models/policies/tables/item:rows", '{"ids": [8, 0]}') == (200, {"rows": [[8, 80], [0, 0]]})
    assert http.post("/v1/models/policies/tables/tag:rows", '{"ids": [3]}') == (200, {"rows": [[3, 9, 1]]})


def test_metadata_has_the_keys_dtypes_and_the_shapes_of_sequences(http: HttpClient) -> None:
    status, answer = http.request("GET", "/v1/models/policies/metadata")
    assert status == 200
    lookup = answer["metadata"]["signature_def"]["signature_def"]["lookup"]
    dtypes = {
        name: lookup["inputs"][name]["dtype"] for name in ("word", "words__values", "words_or_rows__values", "code")
    }
    assert dtypes == {
        "word": "DT_STRING",
        "words__values": "DT_STRING",
        "words_or_rows__values": "DT_INT64",
        "code": "DT_INT64",
    }
    sizes = [dim["size"] for dim in lookup["outputs"]["word_path"]["tensor_shape"]["dim"]]
    assert sizes == ["-1", "3", "2"]


def test_rows_without_ids_have_no_dtype(shared_core: ServerProcess) -> None:
    # A client that does not know the signature can not tell which dtype an empty list has.
    splits = np.array([0, 0, 0])
    for empty in (np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, object)):
        found = shared_core.predict_grpc(
            {"words__values": empty, "words__row_splits": splits, "drop_negative__values": empty}
            | {"drop_negative__row_splits": splits},
            "lookup",
            model="policies",
        )
        assert {name: rows.tolist() for name, rows in found.items()} == {
            "words": [[0, 0], [0, 0]],
            "drop_negative": [[0, 0, 0], [0, 0, 0]],
        }
    with pytest.raises(grpc.RpcError, match="words"):
        shared_core.predict_grpc(
            {"words__values": np.array([1.5], np.float32), "words__row_splits": np.array([0, 1])},
            "lookup",
            model="policies",
        )


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.lists(st.sampled_from([*WORDS, "purple", "", "gr\0ün"]), max_size=5), min_size=1, max_size=4),
    ids=st.lists(st.lists(st.integers(-2, 5), max_size=4), min_size=1, max_size=4),
)
def test_random_sequences_give_what_the_oracle_gives_on_every_wire(
    wires: dict[str, Wire], words: list[list[str]], ids: list[list[int]]
) -> None:
    tables = policy_tables()
    rows = [[WORDS.index(word) if word in WORDS else -1 for word in row] for row in words]
    expected = {
        "word_path": oracle.sequence(tables["item"], rows, 3, on_bad_id="drop"),
        "path_default": oracle.sequence(tables["tag"], ids, 2, on_bad_id="default_row", default_row=1),
    }
    for name, wire in wires.items():
        # One feature a request, because all features of instances need the same number of rows.
        for feature, sent in (("word_path", words), ("path_default", ids)):
            found = wire.send(
                Request("lookup", {feature: sent}, model="policies", id_dtype=None if sent is ids else "string")
            )
            assert np.array_equal(found[feature], expected[feature]), f"{feature} over {name}"
