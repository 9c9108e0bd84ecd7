import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import WireError
from tacit.wire.chain import GENESIS, MAX_LINE, Chain, extend

texts = st.text(st.characters(exclude_categories=()))  # half characters, too
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
entries = st.lists(
    st.dictionaries(texts.filter(lambda name: name != "hash"), values, min_size=1, max_size=3), max_size=5
)


def written(chain: Chain, content: list[dict[str, object]]) -> list[bytes]:
    lines = []
    for entry in content:
        link = chain.seal(entry)
        chain.hashes.append(link.hash)
        lines.append(link.line)
    return lines


@given(entries)
def test_what_is_written_is_read_with_the_same_head(content: list[dict[str, object]]) -> None:
    chain, again = Chain("test"), Chain("test")
    lines = written(chain, content)
    assert [again.read(line) for line in lines] == content
    assert (again.head, again.hashes) == (chain.head, chain.hashes)
    assert not any(b"\n" in line for line in lines)


@given(entries.filter(bool), st.data())
def test_every_changed_byte_is_noticed(content: list[dict[str, object]], data: st.DataObject) -> None:
    lines, again = written(Chain("test"), content), Chain("test")
    number = data.draw(st.integers(0, len(lines) - 1))
    at, bit = data.draw(st.integers(0, len(lines[number]) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(lines[number])
    changed[at] ^= 1 << bit
    for line in lines[:number]:
        again.read(line)
    head = again.head
    with pytest.raises(WireError, match=f"Entry {number} was changed, or entries before it are missing"):
        again.read(bytes(changed))
    assert again.head == head  # a line that is refused changes nothing


def test_chains_of_two_purposes_have_no_line_in_common() -> None:
    line = Chain("ledger").seal({"round": 1}).line
    with pytest.raises(WireError, match="was changed"):
        Chain("journal").read(line)
    assert extend("ledger", GENESIS, [b"a", b"b"]) != extend("ledger", GENESIS, [b"ab"])
    assert extend("ledger", GENESIS, [b"a"]) != extend("journal", GENESIS, [b"a"])


@pytest.mark.parametrize("entry", [{}, {"hash": "0"}])
def test_an_entry_that_could_not_be_read_back_is_not_written(entry: dict[str, object]) -> None:
    with pytest.raises(WireError, match="Expected an entry with content"):
        Chain("test").seal(entry)


@pytest.mark.parametrize("body", [b"[1}", b"{", b'{"a": ' + b"[" * 9999 + b"}", b"", b"1}"])
def test_a_right_hash_over_other_content_is_refused(body: bytes) -> None:
    line = body[:-1] + b', "hash": "' + extend("test", GENESIS, (body[:-1] + b"}",)).hex().encode() + b'"}'
    with pytest.raises(WireError, match="to be a table in JSON"):
        Chain("test").read(line)


def test_a_line_that_is_too_long_is_refused() -> None:
    with pytest.raises(WireError, match="Expected an entry of at most"):
        Chain("test").seal({"a": "x" * MAX_LINE})
    with pytest.raises(WireError, match="was changed"):
        Chain("test").read(b'{"a": "' + b"x" * MAX_LINE + Chain("test").seal({"a": ""}).line[7:])


def test_a_chain_that_forgets_continues_as_one_that_remembers() -> None:
    one, other = Chain("test"), Chain("test")
    for number in range(5):
        line = one.seal({"round": number}).line
        assert one.read(line) == other.read(line)
        other.forget()
    assert (one.head, one.count) == (other.head, other.count)
    assert (len(one.hashes), len(other.hashes)) == (5, 1)
