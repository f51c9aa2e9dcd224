"""From ratings to trained variables: examples, baselines, the model, its loop and checkpoints; export_source.py alone
knows SavedModels. Beside it, the optimizers of embedding tables."""
