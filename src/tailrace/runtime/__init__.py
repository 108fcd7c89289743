"""The loop of a worker and of the coordinator: what waits for sockets, files and the clock."""
