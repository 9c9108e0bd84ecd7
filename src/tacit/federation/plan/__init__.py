"""The plan of a federation, its directory, and the adaptation of methods to sites."""
