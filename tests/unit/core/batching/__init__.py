"""Batching, with a clock and threads that move by hand wherever that can show it."""
