"""Writes the tables of an artifact into a Valkey or Redis cluster, from which servers read rows."""
