"""Where operators look in: metrics, health, the API, the status page, and the commands that use them."""
