"""What it takes to run the gateway somewhere. The product itself (the `gateway` package) knows nothing of this."""
