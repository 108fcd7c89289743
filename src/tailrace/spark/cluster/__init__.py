"""The Spark application, whatever kind of session the program has.

In: a session of the program, or none. Out: the application behind it: its settings, its executors and their task slots.

- `session`: the session that is there, or a local one. `java`, `forking`: what a local one needs to start, quickly.
- `application`: everything that the rest of `spark` requests of Spark; `classic` and `connect` are its two kinds.
- `arguments`: values on their way to the JVM. `defaults`: settings of an environment from `TAILRACE_*` variables.
- `capacity`, `decommissions`: how many task slots there may be, and executors that are about to go.
"""
