"""Where checkpoints and large state are kept: local folders, object stores, databases on local disk."""
