"""Runs: their specification, the loop that trains and charges, and the files that a run leaves."""
