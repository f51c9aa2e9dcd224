"""Implements `model-export diff`: what a new version changed, as text, JSON and HTML."""
