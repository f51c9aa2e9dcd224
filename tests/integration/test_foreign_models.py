"""Models of other tools are adopted without a spec, and give TensorFlow's answers to the bit.

A short form of `python -m loadtest.foreign` and of its --random: fewer models and requests, one server for all adopted
versions and one for the originals.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from loadtest.foreign.models import model_named
from loadtest.foreign.random_models import random_name

pytestmark = [pytest.mark.tf, pytest.mark.core]

NUM_REQUESTS, SEED, NUM_RANDOM = 40, 30, 15
NAMES = [
    "keras3_functional_export",
    "keras3_saved_without_its_variables",
    "keras3_embedding_of_a_column",
    "keras3_string_lookup_buckets",
    "keras3_masked_mean",
    "keras_rs_embed_reduce_mean",
    "tf_keras_subclassed_saved_model_save",
    "tfrs_retrieval",
    "module_gather_and_tower",
    "module_padded_by_minus_one",
    "sparse_safe_default_row",
    "hashed_fast",
    "dlrm",
    "table_of_bfloat16",
    "session_partitioned_div",
    "peer",
    "special_keys_integer_lookup_mask_0",
    "special_keys_string_lookup_mask_pad",
    "special_keys_hashing_mask_0",
    "special_keys_hashing_mask_pad",
    "special_keys_hash_of_0_is_padding",
    "special_keys_hash_of_minus_1_is_missing",
    "special_keys_hash_of_nan_is_missing",
    "special_keys_one_id_is_retired",
    "special_keys_dashes_are_removed",
    "special_keys_scheme_is_removed",
    "special_keys_signs_become_underscores",
    "disproved_lookup_padded_table",
    "large_tables_embedding_65537",
]
# The last ones were once answered wrongly or not adopted: one value of -0.0, inputs of which the graph counts no rows,
# a gather that nothing uses, and a sparse input of uint8.
RANDOM = [random_name(SEED, number) for number in range(NUM_RANDOM)]
RANDOM += [random_name(28, number) for number in (44, 81, 64, 32, 46)]


@pytest.fixture(scope="module")
def results(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Builds all models, adopts each, and compares the answers of both versions with a TensorFlow session's."""
    with warnings.catch_warnings():
        # The import of TensorFlow Serving's stock stubs warns of faults in them, which this project can not mend.
        warnings.simplefilter("ignore")
        from loadtest.foreign.campaign import Plan, run

    # adopt() does not time the graphs: by the times, it would cut only some signatures, and each is compared here in
    # its cut form.
    models = [model_named(name) for name in (*NAMES, *RANDOM)]
    plan = Plan(NUM_REQUESTS, together=len(models), times_adoption=False)
    return {result.name: result for result in run(models, tmp_path_factory.mktemp("foreign"), plan)}


@pytest.mark.parametrize("name", NAMES)
def test_the_original_is_answered_as_tensorflow_does(results: dict[str, Any], name: str) -> None:
    tallies = results[name].of("original")
    assert tallies
    assert all(not tally.reasons and tally.equal == tally.asked > tally.refused for tally in tallies), tallies


@pytest.mark.parametrize("name", NAMES)
def test_the_adopted_version_is_answered_as_tensorflow_does(results: dict[str, Any], name: str) -> None:
    assert results[name].is_exact, _findings(results[name])


@pytest.mark.parametrize("name", RANDOM)
def test_a_random_model_is_refused_by_adopt_or_answered_as_tensorflow_does(results: dict[str, Any], name: str) -> None:
    result = results[name]
    assert result.is_exact or result.adopted.reason.startswith("ExportError"), _findings(result)


def test_adopt_describes_lookups_of_random_models(results: dict[str, Any]) -> None:
    # If adopt left all of them to TensorFlow, their answers would prove nothing.
    described = [name for name in RANDOM if {"lookup", "cut"} & {*results[name].adopted.runs.values()}]
    assert len(described) >= len(RANDOM) // 3


def _findings(result: Any) -> str:
    from loadtest.foreign.report import findings

    return "\n".join(findings(result))
