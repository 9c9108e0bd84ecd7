"""Sites with seeded secrets in processes of their own, which die where a file beside theirs says."""

import os
from collections.abc import Callable
from pathlib import Path

import acme
from tacit.core import ClientKeys
from tacit.federation.accepted_plan import fresh_secrets, seeded_secrets
from tacit.federation.site_files import read_site
from tacit.federation.site_service import Site
from tacit.federation.transport import Handler

DEATH = "death"  # holds `VERB NUMBER before` or `VERB NUMBER after`: at which request, before or after its handling
SEED = "seed"  # holds the seed of the site's secrets, if it is not that of the plans: a ledger refuses repeated noise
FRESH = "fresh"  # in place of that seed: secrets of the operating system


def open_mortal(config: Path) -> Handler:
    number, file = read_site(config).number, config.with_name(SEED)

    def secrets() -> ClientKeys:
        chosen = file.read_text() if file.exists() else str(acme.SEED)
        return fresh_secrets() if chosen == FRESH else seeded_secrets(int(chosen), number)()

    return _counting(Site.open(config, secrets).handle, lambda point: _die(config.with_name(DEATH), point))


def deadly(handlers: dict[str, Handler], name: str, point: str) -> None:
    """Let one of these disconnect at this point, for good."""

    def check(now: str) -> None:
        if now == point:
            del handlers[name]
            raise ConnectionError(now)

    handlers[name] = _counting(handlers[name], check)


def _counting(handle: Handler, check: Callable[[str], None]) -> Handler:
    """The handler, with a check before and after every request: of which verb, and which one of the round's."""
    seen: dict[str, int] = {}

    def counted(verb: str, request: bytes) -> bytes:
        if verb == "train":
            seen.clear()
        seen[verb] = seen.get(verb, 0) + 1
        check(f"{verb} {seen[verb]} before")
        reply = handle(verb, request)
        check(f"{verb} {seen[verb]} after")
        return reply

    return counted


def _die(file: Path, point: str) -> None:
    if file.exists() and file.read_text() == point:
        file.unlink()
        os._exit(9)
