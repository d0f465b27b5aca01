"""The process: start, readiness, logs, drain."""
