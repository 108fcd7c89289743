"""The process of a coordinator on an executor, as Spark starts and reaches it (`runtime.outpost` has what runs there).

In: a request of the program for a coordinator, and letters. Out: the process of the coordinator in a Spark task, and the
letters that it sends back.

- `remote`: the outpost as the program sees it: its Spark job, and requests that short Spark tasks carry.
- `host`: the Spark task that hosts it.
"""
