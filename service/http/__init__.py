"""Serves HTTP as the reference server: FastAPI routes over the engine, and uvicorn."""
