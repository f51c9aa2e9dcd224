"""Conformance tests: one table of requests and answers, run on the engine and on every wire."""
