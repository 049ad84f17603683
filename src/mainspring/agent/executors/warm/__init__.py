"""The directory that a warm interpreter finds first on its path. It holds `sitecustomize` and nothing else.

Next: agent/executors/warm/sitecustomize.py
"""
