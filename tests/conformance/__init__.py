"""One table of requests and answers is run on the engine and on every wire."""
