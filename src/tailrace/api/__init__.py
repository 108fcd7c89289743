"""What a user writes: environment, streams, functions, windows, configuration, the job handle."""
