from pathlib import Path

import pytest

from tacit.enclave.attestation.gramine import GramineAttestor
from tacit.errors import UserError


def test_gramine_is_used_through_its_pseudo_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Expected to run inside Gramine"):
        GramineAttestor(device=tmp_path)
    (tmp_path / "quote").write_bytes(b"a quote")
    attestor = GramineAttestor(b"{}", device=tmp_path)
    assert attestor.quote(bytes(range(64))) == b"a quote"
    assert (tmp_path / "user_report_data").read_bytes() == bytes(range(64))
    with pytest.raises(UserError, match="64 bytes of report data, got 3"):
        attestor.quote(b"abc")
