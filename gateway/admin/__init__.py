"""The admin listener and what it shows; and the parts of the terminal commands that ask it."""
