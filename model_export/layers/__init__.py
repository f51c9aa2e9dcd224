"""Trains, restores and exports models with TPUEmbedding layers (tensorflow_recommenders, Keras 2), on a CPU or TPU."""
