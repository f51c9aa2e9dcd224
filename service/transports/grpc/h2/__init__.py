"""gRPC over HTTP/2 without a framework: an event loop, the protocol's frames, calls as bytes."""
