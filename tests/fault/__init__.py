"""A package, so that the package-scoped brokers end with its last test."""
