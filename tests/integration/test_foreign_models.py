"""Models of other tools are adopted without a spec, and give TensorFlow's answers to the bit.

A short form of `python -m loadtest.foreign`: fewer models and requests, one server for all of them, nothing timed.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadtest.foreign.building import build
from loadtest.foreign.comparing import Refused, Tally, compare
from loadtest.foreign.models import all_models
from loadtest.foreign.random_requests import RandomRequests
from tests.integration.process import ServerProcess

pytestmark = pytest.mark.tf

NUM_REQUESTS = 20
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
]


@dataclass(frozen=True)
class Served:
    """A server of all models: <name> is as its framework wrote it, and <name>-adopted is as `adopt` wrote it."""

    folder: Path
    server: ServerProcess

    def check(self, name: str, served_as: str) -> None:
        """Compares the server's answers over both wires with those of a TensorFlow session."""
        from loadtest.foreign.reference import Reference
        from loadtest.foreign.wires import GrpcWire, RestWire, from_json, has_json_form

        with ExitStack() as stack:
            reference = stack.enter_context(closing(Reference(self.folder / name / "1")))
            over_grpc = stack.enter_context(closing(GrpcWire(f"127.0.0.1:{self.server.grpc_port}")))
            over_rest = stack.enter_context(closing(RestWire(f"http://127.0.0.1:{self.server.http_port}")))
            assert reference.signatures
            tally = Tally()
            for signature, specs in reference.signatures.items():
                seed = zlib.crc32(f"{name}/{signature}".encode())
                for tensors in RandomRequests(specs, all_models()[name].inputs, 1, seed).draw(NUM_REQUESTS):
                    expected = _expected(reference, signature, tensors)
                    compare(tally, expected, lambda s=signature, t=tensors: over_grpc.predict(served_as, s, t))
                    if has_json_form(tensors):
                        wanted = {} if isinstance(expected, Refused) else expected
                        compare(
                            tally,
                            expected,
                            lambda s=signature, t=tensors, w=wanted: from_json(over_rest.predict(served_as, s, t), w),
                        )
            assert not tally.reasons
            assert tally.equal == tally.asked > tally.refused


def _expected(reference: Any, signature: str, tensors: Any) -> Any:
    try:
        return reference.predict(signature, tensors)
    except Refused as refusal:
        return refusal


@pytest.fixture(scope="module")
def served(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Builds all models, adopts each, and serves both versions by one server."""
    from model_export import adopt

    with warnings.catch_warnings():
        # The import of TensorFlow Serving's stock stubs warns of faults in them, which this project can not mend.
        warnings.simplefilter("ignore")
        import loadtest.foreign.wires  # noqa: F401

    folder = tmp_path_factory.mktemp("foreign")
    originals, adopted = folder / "original", folder / "adopted"
    assert build([all_models()[name] for name in NAMES], originals) == {}
    bases = {name: originals / name for name in NAMES}
    for name in NAMES:
        # adopt() does not time the graphs: by the times, it would cut only some signatures, and each is compared here
        # in its cut form.
        adopt(originals / name / "1", out=adopted / name, measure=False)
        bases[f"{name}-adopted"] = adopted / name
    config = folder / "models.conf"
    lines = [f'config {{ name: "{n}" base_path: "{b}" model_platform: "tensorflow" }}' for n, b in bases.items()]
    config.write_text("model_config_list {\n" + "\n".join(lines) + "\n}\n")
    settings = {"model_config_file": config, "file_system_poll_wait_seconds": 0}
    with ServerProcess(**settings) as server:
        yield Served(originals, server.ready())


@pytest.mark.parametrize("name", NAMES)
def test_the_original_is_answered_as_tensorflow_does(served: Served, name: str) -> None:
    served.check(name, name)


@pytest.mark.parametrize("name", NAMES)
def test_the_adopted_version_is_answered_as_tensorflow_does(served: Served, name: str) -> None:
    served.check(name, f"{name}-adopted")
