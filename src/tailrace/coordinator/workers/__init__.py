"""The workers of a job: which process has which slot, and what happens when one is lost.

- `roster`: slots, epochs, signs of life. `places`: the Spark jobs that run processes.
- `standbys`, `standby_placement`: processes that wait, and whose state each of them holds.
- `replacements`, `takeovers`: a lost worker is replaced while the others go on: decisions, and what is known for them.
- `failovers`: the result of each loss, for users.
"""
