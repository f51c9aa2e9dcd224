"""The HTTP reference server: FastAPI routes over the engine, and uvicorn."""
