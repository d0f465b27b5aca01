"""The admin listener: metrics, health, API and status page over HTTP; and the terminal commands that ask it."""
