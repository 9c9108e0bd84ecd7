from tacit.federation.transport.endpoints import Failure, InProcess


def test_every_asked_site_has_one_entry():
    def broken(verb: str, request: bytes) -> bytes:
        raise OSError("connection lost")

    transport = InProcess({"a": lambda verb, request: verb.encode() + request, "b": broken})
    replies = transport.ask("continue", {"a": b"1", "b": b"2", "c": b"3"}, timeout=60)
    assert transport.sites() == ("a", "b")
    assert replies["a"] == b"continue1"
    assert replies["b"] == Failure("error", "OSError: connection lost")
    assert replies["c"] == Failure("absent", "c is not connected")


def test_a_reply_after_the_deadline_is_dropped():
    now = [0.0]

    def slow(verb: str, request: bytes) -> bytes:
        now[0] += 5
        return b"done"

    transport = InProcess({"a": slow, "b": slow, "c": slow}, clock=lambda: now[0])
    replies = transport.ask("continue", dict.fromkeys("abc", b""), timeout=7)
    assert replies == {
        "a": b"done",
        "b": Failure("late", "b answered too late"),
        "c": Failure("late", "c was not reached in time"),
    }
