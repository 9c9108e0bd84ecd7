import threading
from pathlib import Path

import pytest

from federation.echo import answer
from tacit.errors import UserError
from tacit.federation.transport.endpoints import Failure, InProcess
from tacit.federation.transport.relay import MAX_PATH, Relay, RelayTransport


@pytest.fixture
def transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RelayTransport:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    relay = Relay(InProcess({"a": answer, "b": answer}), tmp_path / "relay.sock")
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    return RelayTransport(tmp_path / "relay.sock")


def test_bytes_pass_unchanged_and_failures_keep_their_reason(transport):
    assert transport.sites() == ("a", "b")
    got = transport.ask("echo", {"a": b"", "b": bytes(range(256)) * 5000, "c": b"x"}, 10.0)
    assert got == {
        "a": b"",
        "b": bytes(range(256)) * 5000,
        "c": Failure("absent", "c is not connected"),
    }
    assert transport.ask("raise", {"a": b""}, 10.0) == {"a": Failure("error", "ValueError: a private reason")}
    assert transport.ask("echo", {}, 10.0) == {}


def test_the_socket_is_private(transport):
    assert transport.path.stat().st_mode & 0o777 == 0o600


def test_a_socket_that_a_killed_process_left_is_replaced(transport):
    relay = Relay(InProcess({"z": answer}), transport.path)
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    assert transport.sites() == ("z",)


def test_without_the_other_process_every_site_fails_after_the_patience(tmp_path):
    transport = RelayTransport(tmp_path / "s")
    assert transport.sites() == ()
    (failure,) = transport.ask("echo", {"a": b""}, 0.3).values()
    assert isinstance(failure, Failure)
    assert failure.reason == "error"
    with pytest.raises(UserError, match="tacit federation serve"):
        transport.validate()


def test_a_long_path_is_refused(tmp_path):
    with pytest.raises(UserError, match=f"at most {MAX_PATH} bytes"):
        RelayTransport(tmp_path / ("x" * MAX_PATH)).sites()
