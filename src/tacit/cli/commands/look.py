"""`tacit data look`: every column of files before they are used, all doubts together, and a draft of an encoding."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from tacit.cli._console import align, answer, note
from tacit.core import files
from tacit.data.inspection import TableLook, look
from tacit.errors import expect


def run(args: argparse.Namespace) -> int:
    """Look, and write the draft if a file is named for it."""
    if args.draft is not None:
        expect(not args.draft.exists(), f"no {args.draft} yet", "Remove it, or name another file.")
    looked = look(args.files, client=args.client, target=args.target, person=args.person)
    if args.draft is not None:
        files.write(args.draft, looked.draft().encode())
        note(f"{args.draft}: a draft. No guarantee covers constants from the data until you declare them.")
    return answer(args, asdict(looked), _lines(looked))


def _lines(looked: TableLook) -> Iterator[str]:
    yield f"{looked.rows} rows in {looked.files} files, {len(looked.columns)} columns."
    yield ""
    rows = [
        (each.name, each.role, each.kind, each.range, str(each.values), str(each.missing), "; ".join(each.doubts))
        for each in looked.columns
    ]
    head = ("column", "role", "taken for", "range in the data", "values", "missing", "doubts")
    yield from align([head, *rows], left=7)
    if looked.problems:
        yield ""
        yield from (f"- {sentence}" for sentence in looked.problems)
    if looked.unusable:
        yield ""
        yield f"Not usable as they are: mend them, declare them in an encoding, or --drop {' '.join(looked.unusable)}"
