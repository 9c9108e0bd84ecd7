"""The federated halves of each channel: the server's, a site's, and its part of a plan."""
