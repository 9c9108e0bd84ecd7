from pathlib import Path

from tacit.federation.journal import AuditLog, read_journal


def test_two_writers_continue_one_chain(tmp_path: Path) -> None:
    serving, reviewing = (AuditLog(tmp_path / "log.jsonl") for _ in range(2))
    for number in range(3):
        serving.append("trained", round=number)
        reviewing.append("accepted", plan=str(number))
    AuditLog(tmp_path / "log.jsonl").append("started")
    serving.append("trained", round=3)
    entries = read_journal(tmp_path / "log.jsonl")
    assert [entry["event"] for entry in entries] == [*["trained", "accepted"] * 3, "started", "trained"]
