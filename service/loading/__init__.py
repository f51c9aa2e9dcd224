"""Loads version folders into servables: opens lookups and graphs, batches graph runs, verifies tables, warms up."""
