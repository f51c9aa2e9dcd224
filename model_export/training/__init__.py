"""Trains embedding tables in a v1 graph with a TPU's rules: optimizers, slots, partitions of rows."""
