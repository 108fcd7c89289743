"""Scenarios of one subject: the same jobs and faults as in `search.scenarios`, under other settings."""
