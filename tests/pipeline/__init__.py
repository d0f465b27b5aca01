"""A package, so that the package-scoped Spark session ends with its last test."""
