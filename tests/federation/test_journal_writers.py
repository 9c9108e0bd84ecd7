import tracemalloc
from pathlib import Path

from tacit.core.files import ChainedFile
from tacit.federation.journal import JOURNAL, AuditLog, read_journal
from tacit.wire.chain import Chain


def test_two_writers_continue_one_chain(tmp_path: Path) -> None:
    serving, reviewing = (AuditLog(tmp_path / "log.jsonl") for _ in range(2))
    for number in range(3):
        serving.append("trained", round=number)
        reviewing.append("accepted", plan=str(number))
    AuditLog(tmp_path / "log.jsonl").append("started")
    serving.append("trained", round=3)
    entries = read_journal(tmp_path / "log.jsonl")
    assert [entry["event"] for entry in entries] == [*["trained", "accepted"] * 3, "started", "trained"]


def test_a_long_log_is_opened_and_continued_without_being_held(tmp_path: Path) -> None:
    """More entries than the memory that opening may take, also while another process writes."""
    log = AuditLog(tmp_path / "log.jsonl")
    chain, lines = Chain(JOURNAL), []
    for number in range(20_000):
        link = chain.seal({"time": "t", "event": "asked", "text": "x" * 400, "round": number})
        lines.append(link.line + b"\n")
        chain.extend(link.hash)
        chain.forget()
    (tmp_path / "log.jsonl").write_bytes(b"".join(lines))
    del lines
    tracemalloc.start()
    other = AuditLog(tmp_path / "log.jsonl")
    other.append("charged", round=20_000)
    log.append("charged", round=20_001)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000 < (tmp_path / "log.jsonl").stat().st_size
    reader = ChainedFile(tmp_path / "log.jsonl", JOURNAL)
    assert reader.count == 20_002
    assert [entry["round"] for entry in reader.each_entry()] == [*range(20_002)]


def test_a_log_that_is_replaced_while_it_is_open_is_read_again(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "log.jsonl")
    for number in range(3):
        log.append("asked", round=number)
    (tmp_path / "log.jsonl").write_bytes((tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)[0])
    log.append("asked", round=9)
    assert [entry["round"] for entry in read_journal(tmp_path / "log.jsonl")] == [0, 9]
