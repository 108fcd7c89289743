"""Checks while a simulated job runs, and when it has ended."""
