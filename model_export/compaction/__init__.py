"""Makes the next version of an artifact: writes deltas into its tables, and stores tables in fewer bits."""
