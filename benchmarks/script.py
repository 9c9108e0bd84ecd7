"""What the small scripts have in common: counts on the command line, and one sentence for bad input."""

import argparse
import sys
from collections.abc import Callable

from tacit.errors import TacitError


def count(text: str) -> int:
    """A whole number, at least 1, from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return int(text)


def answer(main: Callable[[], None]) -> None:
    """Run it; what Tacit refuses is said in its own sentence."""
    try:
        main()
    except TacitError as error:
        sys.exit(str(error))
