"""Lists all attacks by name."""

from __future__ import annotations

from loadtest.attacks import http1_cases, http2_cases, reference_cases, tls_cases
from loadtest.attacks.attacker import Case

CASES: dict[str, Case] = {**http2_cases.CASES, **tls_cases.CASES, **http1_cases.CASES, **reference_cases.CASES}
