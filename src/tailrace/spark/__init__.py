"""Workers as Spark tasks, DataFrames in and out, the Java that Spark needs. The only importer of pyspark."""
