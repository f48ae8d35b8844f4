"""Starting Spark: Java, the JVM and shipping code to executors."""
