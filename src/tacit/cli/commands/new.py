"""`tacit new`: write a commented file for a method of your own, with a test that passes."""

import argparse
import re
from keyword import iskeyword
from pathlib import Path

from tacit.errors import UserError

TEMPLATES = Path(__file__).parents[1] / "templates"


def run(args: argparse.Namespace) -> int:
    """Write the file and its test, and print what to do next."""
    name = args.name.replace("-", "_").removesuffix(".py")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or iskeyword(name):
        raise UserError(f"Expected a name of lower-case letters, digits and underscores, got {args.name!r}.")
    known = name if (TEMPLATES / f"{name}.py.txt").exists() and not name.startswith("test_") else "method"
    files = {args.out / f"{name}.py": known, args.out / f"test_{name}.py": "test_method"}
    for path in files:
        if path.exists():
            raise UserError(f"Expected a new file, got {path}, which exists. Choose another name, or --out.")
    args.out.mkdir(parents=True, exist_ok=True)
    for path, template in files.items():
        text = (TEMPLATES / f"{template}.py.txt").read_text(encoding="utf-8")
        path.write_text(text.format(name=name), encoding="utf-8")
    method, test = files
    print(f"Wrote {method} and {test}. Next:")
    print("\n".join(f"  tacit {verb} {method}:{name}" for verb in ("run", "card", "probe")))
    print(f"  python -m pytest {test}")
    return 0
