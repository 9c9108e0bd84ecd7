"""The process of a server or of a site, which `tacit federation serve` or `tacit site serve` starts and ends.

`server FOLDER LISTEN LIMIT`, or `site KIT IDENTITY CONFIG MODULE:FUNCTION LIMIT`.
"""

import asyncio
import os
import sys
from pathlib import Path

from tacit.errors import TacitError
from tacit.federation.transport import process
from tacit.federation.transport.kits import ServerKit, SiteKit


def main(line: list[str]) -> int:
    """Run until the process is ended."""
    kind, *rest = line
    process.end_with_parent()
    os.umask(0o077)
    try:
        return _serve(*rest) if kind == "server" else _connect(*rest)
    except TacitError as error:  # a mistake in the files
        process.say(str(error))
        return error.exit_code


def _serve(folder: str, listen: str, limit: str) -> int:
    from tacit.federation.transport.grpc.server_end import GrpcTransport  # each process has its own end
    from tacit.federation.transport.relay import SOCKET, Relay

    kit = ServerKit(Path(folder))
    address = kit.address()
    process.claim(kit.private)
    here = "127.0.0.1" if address.on_this_machine else "[::]"
    transport = GrpcTransport(kit, listen or f"{here}:{address.port}", int(limit), process.say)
    relay = Relay(transport, kit.private / SOCKET)
    process.say("The server is ready.")
    relay.serve_forever()
    return 0


def _connect(folder: str, identity: str, config: str, opener: str, limit: str) -> int:
    from tacit.federation.transport.grpc.site_end import SiteConnection

    kit, key = SiteKit(Path(folder)), Path(identity)
    kit.validate(key)
    process.claim(kit.folder)
    handler = process.OneThread(opener, Path(config))
    asyncio.run(SiteConnection(kit, key, handler, int(limit), process.say).run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
