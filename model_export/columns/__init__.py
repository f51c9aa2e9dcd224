"""Feature columns of TPU embeddings, as tf.compat.v1.tpu.experimental makes them, with the lookup that they ask for."""
