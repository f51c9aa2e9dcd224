"""Versions of gigabytes swapped in under a steady load: what requests, memory and answers show of it."""
