"""The directory that a prewarmed interpreter finds first on its path. It holds `sitecustomize` and nothing else."""
