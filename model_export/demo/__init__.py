"""The MovieLens demo: ratings, a model on TPU embedding layers, its training and its export."""
