"""Writes versions into object stores, from which servers fetch them. Only upload.py and staging.py import obstore."""
