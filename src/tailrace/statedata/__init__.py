"""State as data: what a checkpoint holds, as rows and columns that can be looked at, counted, joined and written anew. Knows
nothing of Spark, which reads and writes through here."""
