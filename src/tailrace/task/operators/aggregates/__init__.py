"""Running aggregates per key, and what windows share with them.

- `running`: the operator. `generated_loops`: its loops over records in rows.
- `accumulators`, `state`: accumulators in arrays, and the state that they are.
- `arrow`, `grouping`: aggregates of a batch, by Arrow or by the slots of its keys.
"""
