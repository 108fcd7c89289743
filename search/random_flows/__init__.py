"""Random dataflows against a plain interpreter. A flow is data, drawn from a seed; the dataflow that runs and the expected
result are both made from it."""
