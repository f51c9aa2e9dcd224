"""The classes by which users declare tables, features and optimizers, checked at construction; no TensorFlow here."""
