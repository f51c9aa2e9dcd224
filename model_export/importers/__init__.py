"""Imports tables from files of numbers (one module per format) and writes a model of them that the server can serve.

A reader yields chunks of rows; it uses neither TensorFlow nor the artifact's format. Only this package may import the
libraries of the extra `import`.
"""
