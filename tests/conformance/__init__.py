"""One table of requests and answers, held against the engine and both wires."""
