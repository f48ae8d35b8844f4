"""Pipeline jobs as users start them: commands, each with a JVM of its own, so that they can run beside other tests."""
