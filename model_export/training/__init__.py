"""Trains embedding tables in a v1 graph as a TPU trains them: optimizers, slots, partitions of rows."""
