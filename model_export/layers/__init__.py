"""Trains, restores and exports models with TPUEmbedding layers of tensorflow_recommenders (Keras 2), on CPU or TPU."""
