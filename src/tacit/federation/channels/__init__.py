"""What each channel does between sites: at the server, at a site, and in what a plan says of it."""
