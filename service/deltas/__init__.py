"""Changes rows of served versions: reads delta files, keeps the journal of upserts, and makes tables with new rows."""
