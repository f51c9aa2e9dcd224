"""Feature columns of TPU embeddings as tf.compat.v1.tpu.experimental has them, with lookups that run on any machine."""
