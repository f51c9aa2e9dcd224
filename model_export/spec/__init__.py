"""Declarations: what the user writes about tables and features, checked when it is built; no TensorFlow here."""
