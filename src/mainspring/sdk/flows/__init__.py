"""Tasks that belong together: batches, which are counted; chains and groups, which run after each other."""
