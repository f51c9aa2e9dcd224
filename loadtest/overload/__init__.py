"""Measures a server's goodput and response times under overload: `python -m loadtest.overload`."""
