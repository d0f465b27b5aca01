"""The process: start, reload and orderly stop, workers, readiness, logs, systemd."""
