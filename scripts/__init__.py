"""What `make` runs: set up, start and stop on one machine."""
