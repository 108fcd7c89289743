"""The classes that a user writes with: environment, streams, functions, windows, configuration, the job handle."""
