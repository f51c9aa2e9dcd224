"""Trains embedding tables in a v1 graph as a TPU does: optimizers, slots, partitions of rows."""
