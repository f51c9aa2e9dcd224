"""Loads version folders into servables: opens lookups and graphs, verifies tables, runs warm-up requests."""
