"""`drop_duplicates` at run time. Batches of either form go in, and come out without the records whose keys have been there.

Open `duplicates` for the operator; `firsts` finds the distinct keys of a batch in columns.
"""
