"""Trains TPU-embedding models and writes them as stock SavedModels; knows nothing of servers or wires."""
