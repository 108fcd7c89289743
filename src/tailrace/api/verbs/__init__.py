"""What verbs of streams consist of.

- `everyday`: verbs that are composed of other operators; `functions` has the functions that these call.
- `columns`: names of columns and expressions.
- `two_streams`: functions of two streams.
"""
