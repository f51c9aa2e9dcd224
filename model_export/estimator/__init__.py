"""EmbeddingEstimator: TPUEstimator's programming model, on today's TensorFlow and without a TPU."""
