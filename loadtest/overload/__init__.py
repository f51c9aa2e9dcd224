"""Measures answers and their times under overload."""
