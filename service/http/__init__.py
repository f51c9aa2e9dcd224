"""Serves HTTP in Python (the control server): FastAPI routes over the engine, run by uvicorn."""
