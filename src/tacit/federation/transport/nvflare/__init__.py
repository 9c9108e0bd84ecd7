"""NVFLARE beneath a federation: TLS, certificates, registration, heartbeats, reconnection and message transport.

Server and sites are NVFLARE's long-running processes, each with one component of ours. Of NVFLARE's own messages they
accept only those for registration and heartbeats (`accepted_messages`): no jobs, commands or shells, and nothing from
one site to another. So no code and no configuration comes over the wire. A site that restarts registers again and
takes part in the next exchange; a run survives a restart of the server.
"""
