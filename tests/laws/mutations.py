"""Random changes of valid inputs, for fuzzing."""

import functools
import random
import re
import struct

Chance = random.Random

_HUGE = [0, 1, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1]
_TOKENS = [
    b"Infinity", b"-Infinity", b"NaN", b"1e999", b"-1", b"0", b"1e-320", b"123456789012345678901234567890", b"null",
    b"true", b'""', b"[]", b"{}", b"[[[[[[[[]]]]]]]]", b'"\\ud800"', b"2.5", b"-0.0", b'"inf"', b"9" * 5000, b"inf",
    b"nan", b"Plain()", b"None", b"1979-05-27T07:32:00Z",
]  # fmt: skip
_TOKEN = re.compile(rb'-?\d[\d.eE+-]*|"(?:[^"\\]|\\.)*"|\'[^\']*\'|\b(?:true|false|null|None|True|False)\b|[A-Z]\w*\(')


def change_bytes(chance: Chance, data: bytes) -> bytes:
    """A few changed, removed, repeated or inserted bytes; numbers often become huge."""
    text = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text) + 1)
        match chance.randrange(7):
            case 0:
                text[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del text[at : at + chance.randint(1, 40)]
            case 2:
                text[at:at] = chance.randbytes(chance.randint(1, 40))
            case 3:
                width, code = chance.choice([(1, "B"), (2, "H"), (4, "I"), (8, "Q")])
                number = chance.choice(_HUGE) & ((1 << 8 * width) - 1)
                text[at : at + width] = struct.pack(chance.choice("<>") + code, number)
            case 4:
                text[at:at] = text[: chance.randint(0, len(text))]
            case 5 if at < len(text):
                text[at] ^= 1 << chance.randrange(8)
            case 6:
                del text[at:]
    return bytes(text)


@functools.lru_cache(maxsize=64)
def _tokens(data: bytes) -> list[re.Match[bytes]]:
    """The tokens of an input; samples come again and again."""
    return list(_TOKEN.finditer(data))


def change_tokens(chance: Chance, data: bytes) -> bytes:
    """One or two numbers, strings or names replaced by others that are valid syntax."""
    found = _tokens(data)
    if not found:
        return change_bytes(chance, data)
    chosen = {chance.randrange(len(found)) for _ in range(chance.randint(1, 2))}
    for number in sorted(chosen, reverse=True):
        at = found[number]
        new = chance.choice([*_TOKENS, chance.choice(found)[0]])
        data = data[: at.start()] + new + data[at.end() :]
    return data


def nest(chance: Chance, data: bytes) -> bytes:
    """A value nested far too deeply, or repeated far too often, in place of a token."""
    found = _tokens(data)
    (deep,) = chance.choices([50, 900, 3000, 100_000], [10, 6, 3, 1])
    left, right = chance.choice(
        [(b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"-", b""), (b"Plain(", b")"), (b"a.", b"b")]
    )
    new = left * deep + b"0" + right * deep
    if chance.random() < 0.1:
        return data + b"\n" + b"a." * min(deep, 60_000) + b"a = 1\n"
    at = chance.choice(found) if found else None
    return data[: at.start()] + new + data[at.end() :] if at else new
