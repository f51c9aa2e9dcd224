"""Runs TensorFlow graphs. Only this folder imports TensorFlow's package, if the native core can not open a graph."""
