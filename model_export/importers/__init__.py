"""Reads tables from files of numbers, one module per format, and writes them as a served model.

A reader yields chunks of rows and knows nothing of TensorFlow or of the artifact. Only this package may import the
libraries of the extra `import`.
"""
