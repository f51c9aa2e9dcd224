"""The classes by which users declare tables, features and optimizers, with checks of the arguments; no TensorFlow."""
