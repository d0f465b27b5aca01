"""A package to pytest, so that Spark's session can end with the last test that uses it."""
