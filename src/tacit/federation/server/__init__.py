"""The server of a federation: rounds, the sites' replies and failures, and reports."""
