"""Scaling: how many slots the work asks for, from figures and plan times. Uses nothing."""
