"""Every decoder refuses hostile bytes with Tacit's own errors, in at most a second and a GiB.

The suite tries 150 inputs for every decoder. A campaign tries more and prints its seed:
`python tests/laws/decoders.py --inputs 1000000`, or `python -m pytest --scale campaign tests/laws/test_decoders.py`.
"""

import os
import re
from pathlib import Path

import pytest

from laws.decoders import all_decoders
from laws.fuzzing import Decoder, fuzz
from scale import scaled

INPUTS = scaled(150, campaign=100_000)
SEED = int(os.environ.get("TACIT_SEED", "0"))


@pytest.mark.parametrize("decoder", all_decoders(), ids=lambda decoder: decoder.name)
@pytest.mark.filterwarnings("ignore")
def test_a_decoder_refuses_hostile_bytes_with_an_error_of_its_own(decoder: Decoder) -> None:
    outcome = fuzz(decoder, SEED, INPUTS)
    assert outcome.clean, f"seed {SEED}: {outcome}"
    assert outcome.inputs == INPUTS


def test_the_documents_list_every_decoder() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "concepts" / "decoders.md").read_text(encoding="utf-8")
    fuzzed = set(re.findall(r"`([^`]+)`", "".join(re.findall(r"^\|[^|]*\|([^|]*)\|", page, re.MULTILINE))))
    assert fuzzed == {decoder.name for decoder in all_decoders()}
