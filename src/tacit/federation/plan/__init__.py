"""What a federation trains: its plan, its sites, and whether a method can run between them."""
