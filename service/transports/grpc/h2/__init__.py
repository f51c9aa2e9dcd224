"""gRPC over HTTP/2 without a framework: an event loop, httpunk (hyper's h2) for the protocol, calls as bytes."""
