"""The server of a federation: rounds, sites that answer or are lost, and what is reported."""
