"""Rows that change without a new version: delta files, the journal of upserts, and the tables that show them."""
