"""State as data: the content of a checkpoint as rows and columns that a user can look at, count, join and write anew.
Independent of Spark, which reads and writes through this package."""
