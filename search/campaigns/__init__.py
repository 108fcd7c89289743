"""Scenarios of one subject: the jobs and faults of `search.scenarios`, under other settings."""
