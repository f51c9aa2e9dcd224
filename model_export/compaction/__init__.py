"""The next version of an artifact: deltas folded into its tables, tables reduced to fewer bits."""
