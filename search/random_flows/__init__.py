"""Random dataflows against a plain interpreter: a flow is data, drawn from a seed; the dataflow that runs and the result
that is expected are both made from it."""
