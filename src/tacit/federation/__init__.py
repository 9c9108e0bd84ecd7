"""The same methods between a server and sites that do not trust one another.

A site is a process that plays one client, with its own data, secrets, policy and privacy ledger. Server and sites
exchange bytes over a `Transport`.
"""
