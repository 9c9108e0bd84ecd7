"""Runs: what is planned, the loop that trains and charges, and the files that a run leaves."""
