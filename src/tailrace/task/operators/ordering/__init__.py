"""Records in the order of event time.

In: batches of keyed records, in the order in which they arrive. Out: records and timers of each key in the order of their
times, once the watermark has passed them.

- `process`: process functions that are called in order.
- `buffer`: records that wait for event time, as keyed state; `columnbuffer`: those of streams in columns.
"""
