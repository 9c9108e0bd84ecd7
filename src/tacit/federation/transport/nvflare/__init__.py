"""NVFLARE beneath a federation: TLS, certificates, registration, heartbeats, reconnection and message transport.

Server and sites are NVFLARE's long-running processes, each with one component of ours. Of NVFLARE's own messages they
accept those for registration and heartbeats, and no others (`accepted_messages`): no job, no command, no shell, and
nothing that one site sends to another. So no code and no configuration comes over the wire. A site that
restarts registers again and takes part in the next exchange; a run continues over a restart of the server.
"""
