"""Daemons and their replicas, which are tasks that run again. Imports limits/ and below."""
