"""schemathesis over the server's OpenAPI document."""

from __future__ import annotations

import subprocess
import sys
import tempfile

# Those that hold for this API. Left out: negative_data_rejection and positive_data_acceptance, because what an input
# may be depends on the signature, which no schema of a route can say; unsupported_method, because TensorFlow Serving
# answers 400 and not 405; missing_required_header and those of authentication and resources, of which there are none.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


PHASES = "examples,coverage,fuzzing,stateful"


def run_schemathesis(url: str, *, max_examples: int, seed: int, phases: str = PHASES) -> int:
    """Runs it against a server, its report on standard output; returns its exit status.

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
        # Elsewhere, because it writes files where it runs.
        return subprocess.run(command, cwd=folder).returncode
