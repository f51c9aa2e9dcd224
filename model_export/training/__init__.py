"""From ratings to trained variables: examples, baselines, the model, its loop and checkpoints; knows no SavedModel."""
