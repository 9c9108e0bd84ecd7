"""How bytes travel between server and sites."""
