"""What `pipeline check` looks at, one matter to a file."""
