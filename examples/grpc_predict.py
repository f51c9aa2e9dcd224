"""Requests predicted ratings over gRPC with TensorFlow Serving's stubs, without any code of this project.

pip install tensorflow-serving-api
python examples/grpc_predict.py --server=127.0.0.1:8500 --model_name=movielens
"""

from __future__ import annotations

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

# The request has two rows: user 1 rates film 50, once after films 1 and 2 and once without recent films. Genres and
# occupations are sent as strings of the model's vocabularies; their row numbers would do too.
INPUTS = {
    "user_id": tf.constant([1, 1], tf.int64),
    "film_id": tf.constant([50, 50], tf.int64),
    "occupation": tf.constant(["technician", "technician"]),
    "genres__values": tf.constant(["Action", "Sci-Fi", "Action", "Sci-Fi"]),
    "genres__row_splits": tf.constant([0, 2, 4], tf.int64),
    "recent_films__values": tf.constant([1, 2], tf.int64),
    "recent_films__row_splits": tf.constant([0, 2, 2], tf.int64),
}


def main() -> int:
    """Sends the request and prints the ratings; if it fails, prints the server's error and returns 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="127.0.0.1:8500")
    parser.add_argument("--model_name", default="movielens")
    options = parser.parse_args()
    request = predict_pb2.PredictRequest()
    request.model_spec.name = options.model_name
    for name, tensor in INPUTS.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(tensor))
    with grpc.insecure_channel(options.server) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        try:
            response = stub.Predict(request, timeout=10)
        except grpc.RpcError as error:
            sys.stderr.write(f"{error.code().name}: {error.details()}\n")
            return 1
    ratings = tf.make_ndarray(response.outputs["rating"])
    sys.stdout.write(f"model version {response.model_spec.version.value}, ratings {ratings.tolist()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
