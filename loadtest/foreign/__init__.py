"""Models of other tools, adopted and compared: `python -m loadtest.foreign`.

Each builder writes a SavedModel with its framework's own export, and no file of this project. The comparator runs
`model-export adopt` on each, serves the original and the adopted version by two servers, and holds the answers of both
against TensorFlow's own, bit for bit. Files of this folder know the wire and the command line only, as all load tests
do; a builder imports its framework when it runs, because Keras 2 and Keras 3 cannot share a process.
"""
