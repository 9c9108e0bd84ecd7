"""The frameworks that are compared: each is a script that runs one round per command (see `messages`)."""
