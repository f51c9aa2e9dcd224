"""Makes the next version of an artifact: folds deltas into its tables, and reduces tables to fewer bits."""
