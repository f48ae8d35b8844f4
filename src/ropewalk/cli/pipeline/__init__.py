"""`ropewalk pipeline`: Spark jobs, tables and SQL."""
