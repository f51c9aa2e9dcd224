"""Readers of files of numbers, and the models made of them."""
