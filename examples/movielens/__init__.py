"""The MovieLens demo: ratings of films, a model with TPU embedding layers, its training and its export."""
