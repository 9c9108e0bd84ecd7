"""Federated learning that says little and gives nothing away."""
