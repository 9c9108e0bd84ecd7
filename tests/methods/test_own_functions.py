"""A method in a file of your own: what its function raises is a sentence."""

from pathlib import Path

import pytest

import tacit


def test_a_function_that_fails_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def boom():\n    raise KeyError('lr')\n")
    with pytest.raises(tacit.UserError, match=r"mine.py:boom failed: KeyError: 'lr'. Call the function in Python"):
        tacit.methods.make(f"{file}:boom", {})
