"""Transports between server and sites."""
