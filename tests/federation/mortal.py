"""Sites with seeded secrets in processes of their own, which die where a file beside theirs says."""

import os
from pathlib import Path

from federation import acme
from tacit.federation.site_files import read_site
from tacit.federation.site_service import Site, seeded_secrets
from tacit.federation.transport import Handler

DEATH = "death"  # holds `VERB NUMBER before` or `VERB NUMBER after`: at which request, before or after its handling


def open_mortal(config: Path) -> Handler:
    site = Site.open(config, seeded_secrets(acme.SEED, read_site(config).number))
    seen: dict[str, int] = {}

    def handle(verb: str, request: bytes) -> bytes:
        seen[verb] = seen.get(verb, 0) + 1 if verb != "train" else 1
        if verb == "train":
            seen["talk"] = 0
        _die(config, verb, seen[verb], "before")
        reply = site.handle(verb, request)
        _die(config, verb, seen[verb], "after")
        return reply

    return handle


def _die(config: Path, verb: str, number: int, when: str) -> None:
    file = config.with_name(DEATH)
    if file.exists() and file.read_text() == f"{verb} {number} {when}":
        file.unlink()
        os._exit(9)
