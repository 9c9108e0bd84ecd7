"""A site in an interpreter of its own: requests on standard input, replies on standard output."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import acme
from tacit.federation.accepted_plan import seeded_secrets
from tacit.federation.site_service import Site


def main(path: Path, number: int) -> None:
    site = Site.open(path, seeded_secrets(acme.SEED, number))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while size := source.read(8):
        verb = source.read(int.from_bytes(size, "little")).decode()
        reply = site.handle(verb, source.read(int.from_bytes(source.read(8), "little")))
        sink.write(len(reply).to_bytes(8, "little") + reply)
        sink.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
