"""Changes rows of served versions: reads delta files, journals upserts, and writes rows to copies of tables."""
