"""Tests the server with schemathesis, which makes requests from the server's OpenAPI document."""

from __future__ import annotations

import subprocess
import sys
import tempfile

# The checks of schemathesis that fit this server's HTTP API. Left out are negative_data_rejection and
# positive_data_acceptance, because valid inputs depend on the signature, which a route's schema can not describe;
# unsupported_method, because TensorFlow Serving's status is 400, not 405; and the checks of required headers,
# authentication and resources, which the API does not have.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


PHASES = "examples,coverage,fuzzing,stateful"


def run_schemathesis(url: str, *, max_examples: int, seed: int, phases: str = PHASES) -> int:
    """Runs schemathesis against a server; its report goes to standard output; returns its exit status.

    Args:
      url: "http://host:port".
      max_examples: cases per operation and phase.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
            f"--checks={','.join(CHECKS)}",
            f"--phases={phases}",
            f"--max-examples={max_examples}",
            f"--seed={seed}",
            "--continue-on-failure",
            "--request-timeout=60",
            "--generation-database=none",
            "--suppress-health-check=all",
            "--warnings=off",
            "--no-color",
        ]
        # schemathesis runs in a temporary folder, because it writes files into its current folder.
        return subprocess.run(command, cwd=folder).returncode
