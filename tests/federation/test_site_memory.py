"""A site's memory of what it has spent: an older copy, or none, of its ledger is found by its log."""

from pathlib import Path

import msgspec
import pytest

from federation.consortium import Consortium, send
from federation.faulty import DP, at, refusal
from federation.test_strangers import addressed, asked, charges
from tacit.cli import main
from tacit.errors import LedgerError
from tacit.federation.journal import read_journal
from tacit.federation.messages import TRAIN, Answer, Refusal, SiteRequest
from tacit.federation.site.files import read_site

NAMES = ("ledger.db", "ledger.db.head")


def restore(state: Path, copies: dict[str, bytes], *names: str) -> None:
    for name in names or NAMES:
        (state / name).write_bytes(copies[name])


def spent(folder: Path) -> tuple[Consortium, SiteRequest, dict[str, bytes]]:
    """A site that was charged twice, its next request, and copies of its ledger after the first charge."""
    policy = {"epsilon": 50.0, "min_cohort": 3}
    consortium, plan = at(folder, "fl-std-dp", args={**DP, "rounds": 3}, policy=policy, public="acme:public")
    site, request, copies = consortium.site("site-0"), asked(plan), dict[str, bytes]()
    for attempt in (1, 2):
        reply = send(site, TRAIN, addressed(site, request, attempt=attempt))
        assert isinstance(msgspec.msgpack.decode(reply, type=Answer | Refusal), Answer)
        if attempt == 1:
            copies = {name: (site.files.state / name).read_bytes() for name in NAMES}
    assert charges(consortium) == 2
    return consortium, addressed(site, request, attempt=3), copies


LOSSES = {  # what is restored, removed and emptied, and what is said of it
    "ledger and head restored": (NAMES, (), (), "it was rolled back"),
    "ledger restored, head removed": (NAMES[:1], NAMES[1:], (), "it was rolled back"),
    "ledger restored": (NAMES[:1], (), (), "it was rolled back"),
    "both removed": ((), NAMES, (), "it is empty"),
    "ledger removed": ((), NAMES[:1], (), "it is empty"),
    "ledger emptied, head removed": ((), NAMES[1:], NAMES[:1], "it is empty"),
}


@pytest.mark.parametrize(("restored", "removed", "emptied", "why"), LOSSES.values(), ids=LOSSES)
def test_a_ledger_without_the_charges_of_the_log_is_refused(
    tmp_path: Path, restored: tuple[str, ...], removed: tuple[str, ...], emptied: tuple[str, ...], why: str
) -> None:
    """Ledger and head restored together were not noticed: twelve more rounds were charged to the older one."""
    consortium, request, copies = spent(tmp_path)
    home = consortium.home("site-0")
    if restored:
        restore(home / "state", copies, *restored)
    for name in removed:
        (home / "state" / name).unlink()
    for name in emptied:
        (home / "state" / name).write_bytes(b"")
    for site in (consortium.site("site-0"), consortium.site("site-0")):
        assert refusal(send(site, TRAIN, request)).code == "storage"
    trained = [entry for entry in read_journal(home / "state" / "log.jsonl") if entry["event"] == "trained"]
    assert len(trained) == 2
    files = read_site(home / "site.toml")
    with pytest.raises(LedgerError, match=why) as error:
        files.charges()
    assert "as noted in" in str(error.value)


def test_a_site_says_so_when_it_is_asked_what_was_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consortium, _, copies = spent(tmp_path)
    restore(consortium.home("site-0") / "state", copies)
    assert main(["site", "ledger", str(consortium.home("site-0") / "site.toml")]) != 0
    assert "Charges are missing from it" in capsys.readouterr().err


def test_a_ledger_that_is_ahead_of_the_log_is_continued(tmp_path: Path) -> None:
    """A crash between the charge and the log's entry costs nothing but that charge."""
    consortium, request, _ = spent(tmp_path)
    log = consortium.home("site-0") / "state" / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if b'"charged"' in line)
    log.write_bytes(b"".join(lines[:last]))
    site = consortium.site("site-0")
    assert isinstance(msgspec.msgpack.decode(send(site, TRAIN, request), type=Answer | Refusal), Answer)
    assert charges(consortium) == 3
