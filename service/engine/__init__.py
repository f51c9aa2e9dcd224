"""Manages models, versions and leases; checks, admits and batches requests.

Imports no wire formats and no TensorFlow.
"""
