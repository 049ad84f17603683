"""This server among the others: membership and lease, leadership and its duties, the clock. Imports no other room."""
