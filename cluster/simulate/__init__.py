"""A cluster on paper: real traces replayed through the real brain, on a clock of their own."""
