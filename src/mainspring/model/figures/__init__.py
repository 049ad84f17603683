"""How figures are counted: the buckets of lateness and duration, and what is read from them. Uses nothing."""
