"""A site: its data, its policy, the plans that it has accepted, and its answers."""
