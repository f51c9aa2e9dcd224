"""Reads settings from flags, variables and files, and finds their faults."""
