"""A site: its data, its policy, its accepted plans, and its answers."""
