"""Serves HTTP in Python (the reference server): FastAPI routes over the engine, run by uvicorn."""
