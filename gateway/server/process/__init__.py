"""The process: start and orderly stop, readiness, logs, systemd."""
