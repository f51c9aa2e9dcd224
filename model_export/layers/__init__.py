"""TPUEmbedding-layer models (tensorflow_recommenders, Keras 2): train on a CPU or a TPU, restore, export."""
