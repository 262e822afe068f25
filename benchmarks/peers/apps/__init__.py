"""One module for each contender: how its users would write the same job. Only its own environment can import it."""
