"""EmbeddingEstimator: TPUEstimator's interface for training and export, on today's TensorFlow and without a TPU."""
