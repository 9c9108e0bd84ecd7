"""What every command does with wrong arguments."""

import pytest

from tacit.cli import main


def assert_refused(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line exits with code 2 and prints one sentence with these words, and nothing else."""
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert err.count("\n") == 1
    assert out == ""
