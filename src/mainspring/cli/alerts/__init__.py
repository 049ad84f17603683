"""`mainspring alert` and `mainspring channel`."""
