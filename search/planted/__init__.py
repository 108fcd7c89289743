"""Bugs to be planted, by subject: each must be found by a search, and nothing may be found without it (`table`)."""
