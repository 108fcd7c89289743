"""How a user says it: environment, streams, functions, windows, configuration, the job handle."""
