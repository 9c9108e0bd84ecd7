"""A site for tests of a transport: it does what the verb says."""

import os
import time
from pathlib import Path
from typing import cast

from tacit.federation.transport.endpoints import Handler

HANDLED = "handled.txt"  # in the kit of a site that counts: one line for each request


def open_echo(config: Path) -> Handler:
    return answer


def open_count(config: Path) -> Handler:
    """Writes down what it has handled, before it answers."""

    def count(verb: str, request: bytes) -> bytes:
        if verb == "count":
            with (config / HANDLED).open("ab") as out:
                out.write(request + b"\n")
            time.sleep(0.05)
        return request if verb == "count" else answer(verb, request)

    return count


def answer(verb: str, request: bytes) -> bytes:
    match verb:
        case "echo":
            return request
        case "sleep":
            time.sleep(float(request))
            return b"slept"
        case "raise":
            raise ValueError("a private reason")
        case "exit":
            os._exit(3)
        case "garbage":
            return cast(bytes, {"not": "bytes"})
        case "length":
            return str(len(request)).encode()
        case "bytes":
            return bytes(int(request))
    raise ValueError(verb)
