"""The same methods between a server and sites that do not trust one another.

A site is a process that plays one client: it has its own data, its own secrets, its own policy and its own privacy
ledger. What travels between server and sites are bytes, over a `Transport`.
"""
