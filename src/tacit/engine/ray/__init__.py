"""Simulations on several machines, by Ray."""
