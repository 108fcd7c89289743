"""Bugs to be planted, by subject: a search must find each of them, and must find nothing without it (`table`)."""
