"""Storage of checkpoints and of large state: local folders, object stores, databases on local disk."""
