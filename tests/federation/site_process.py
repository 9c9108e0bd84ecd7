"""Sites in processes of their own, forked from an interpreter that has nothing but the code: requests and replies.

`site_process.py DESCRIPTOR=NUMBER=FILE ...`: for each site, the socket that this process inherits, the number of the
client, and the site's file.
"""

import os
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import acme
from tacit.federation.site.accepted_plan import seeded_secrets
from tacit.federation.site.service import Site


def serve(path: Path, number: int, link: socket.socket) -> None:
    site = Site.open(path, seeded_secrets(acme.SEED, number))
    source, sink = link.makefile("rb"), link.makefile("wb")
    while size := source.read(8):
        verb = source.read(int.from_bytes(size, "little")).decode()
        reply = site.handle(verb, source.read(int.from_bytes(source.read(8), "little")))
        sink.write(len(reply).to_bytes(8, "little") + reply)
        sink.flush()


def main(*sites: str) -> None:
    children = []
    for each in sites:
        descriptor, number, path = each.split("=", 2)
        child = os.fork()
        if child == 0:
            serve(Path(path), int(number), socket.socket(fileno=int(descriptor)))
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
