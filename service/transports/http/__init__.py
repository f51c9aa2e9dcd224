"""HTTP: FastAPI routes over the engine."""
