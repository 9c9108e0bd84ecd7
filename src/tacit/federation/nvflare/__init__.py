"""NVFLARE beneath a federation: TLS, certificates, registration, heartbeats, reconnection and message transport.

Server and sites are NVFLARE's long-running processes, each with one component of ours. Nothing is submitted as a job:
jobs are refused at the server and at every site, so that no code and no configuration comes over the wire. A site that
restarts registers again and takes part in the next exchange; a run continues over a restart of the server.
"""
