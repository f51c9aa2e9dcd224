"""Adopts models of other frameworks, and compares the answers of the adopted and original versions with TensorFlow's.

Each builder writes a SavedModel with its framework's own export, and uses no code of this project. The comparator runs
`model-export adopt` on each, serves the original and the adopted version by two servers, and compares the answers of
both with TensorFlow's, bit for bit. Files of this folder know the wire and the command line only, as all load tests
do; a builder imports its framework when it runs, because Keras 2 and Keras 3 cannot share a process.
"""
