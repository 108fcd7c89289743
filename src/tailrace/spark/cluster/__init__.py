"""The Spark application, whatever kind of session the program has.

- `session`: the session that is there, or a local one. `java`, `forking`: what a local one needs to start, quickly.
- `application`: everything that the rest of `spark` requests of Spark; `classic` and `connect` are its two kinds.
- `arguments`: values on their way to the JVM. `defaults`: settings of an environment from `TAILRACE_*` variables.
- `capacity`, `decommissions`: how many task slots there may be, and executors that are about to go.
"""
