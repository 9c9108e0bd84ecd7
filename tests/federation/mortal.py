"""Sites in processes of their own, which die where a file beside theirs says, with secrets that can be played again."""

import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import acme
from tacit.core import ClientKeys, Key
from tacit.federation.messages import TRAIN, SiteRequest, read_request
from tacit.federation.site.accepted_plan import seeded_secrets
from tacit.federation.site.files import read_site
from tacit.federation.site.service import Site
from tacit.federation.transport.endpoints import Handler

DEATH = "death"  # holds `VERB NUMBER before` or `VERB NUMBER after`: at which request, before or after its handling
SEEDS = "seeds"  # if it exists: lines `PLAN SEED`; a ledger refuses the secrets of one plan under another
NOTES = "notes"  # if it exists: secrets are fresh, and noted here; otherwise they are those of the plans' seed


@dataclass(frozen=True)
class NotedKeys(ClientKeys):
    """Keys of one attempt only, the same whatever its number: an undisturbed run takes fewer attempts."""

    def child(self, name: str, index: int = 0) -> ClientKeys:
        return self if name == "attempt" else ClientKeys.child(self, name, index)

    @classmethod
    def from_note(cls, note: int) -> "NotedKeys":
        return cls(Key.from_seed(note, "noted"), single=True)


def read_notes(path: Path) -> dict[tuple[str, int, int], int]:
    """What a site's keys derive from, by the server's run, round and attempt."""
    lines = map(json.loads, path.read_text().splitlines())
    return {(run, index, attempt): note for run, index, attempt, note in lines}


def seed_of(config: Path, asked: list[SiteRequest]) -> int:
    """The seed of the plan that is asked for."""
    file = config.with_name(SEEDS)
    seeds = dict(line.split() for line in file.read_text().splitlines()) if file.exists() else {}
    return int(seeds.get(asked[0].plan.hex(), acme.SEED)) if asked else acme.SEED


def open_mortal(config: Path) -> Handler:
    number, notes = read_site(config).number, config.with_name(NOTES)
    asked: list[SiteRequest] = []

    def keys() -> ClientKeys:
        if not notes.exists():
            return seeded_secrets(seed_of(config, asked), number)()
        note, (now,) = secrets.randbits(63), asked
        with notes.open("a") as file:
            file.write(json.dumps([now.run.hex(), now.round + 1, now.attempt, note]) + "\n")
        return NotedKeys.from_note(note)

    site = Site.open(config, keys)

    def handle(verb: str, request: bytes) -> bytes:
        if verb == TRAIN:
            asked[:] = [read_request(request, SiteRequest)]
        return site.handle(verb, request)

    return _counting(handle, lambda point: _die(config.with_name(DEATH), point))


def _counting(handle: Handler, check: Callable[[str], None]) -> Handler:
    """The handler, with a check before and after every request: of which verb, and which one of the round's."""
    seen: dict[str, int] = {}

    def counted(verb: str, request: bytes) -> bytes:
        if verb == TRAIN:
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
