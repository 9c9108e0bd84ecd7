"""Digests of private data, keyed with a secret that stays with their owner.

Whoever knows all rows but one could try candidates for the last one against a digest without a key, exactly and off
line, which no ε survives. With the owner's key, equal data still have equal digests, so that a resumed run notices
other data; without it, a digest reveals nothing about them. All digests are keyed, those of public data sets too: a
task's name does not prove that its samples are public.

The key is one file for all runs of a user, outside of every run directory: `$TACIT_DATA_KEY`, or else
`$XDG_STATE_HOME/tacit/data.key` (usually `~/.local/state/tacit/data.key`). It is created at its first use, and read
only in the process that was started, never by workers.
"""

import hashlib
import os
import re
from pathlib import Path

import torch
from torch import Tensor

from tacit.core import Key, secret_file
from tacit.core.prices import IDENTITY_DIGITS
from tacit.data import Population
from tacit.errors import StorageError, UserError

VARIABLE = "TACIT_DATA_KEY"
WHAT = "data key"
MAX_IDENTIFIED = 1000  # clients of a run on a shared ledger, whose entries list them
_KEYED = re.compile(r"keyed:([0-9a-f]{8}):[0-9a-f]{32}")


def place() -> Path:
    """The file of the user's key."""
    configured, base = os.environ.get(VARIABLE), os.environ.get("XDG_STATE_HOME")
    if configured:
        return Path(configured).expanduser().absolute()
    try:
        folder = Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "state"
        return folder / "tacit" / "data.key"
    except RuntimeError as error:
        raise UserError(
            f"Expected a home folder for the {WHAT}, the secret with which digests of your data are computed, but this "
            f"user has none. Set {VARIABLE} to a file of your own; it is created if it does not exist."
        ) from error


def load() -> Key:
    """The user's key, created if there is none."""
    path = place()
    try:
        secret_file.make(path)
    except StorageError as error:
        raise StorageError(
            f"The {WHAT} {path}, the secret with which digests of your data are computed, could not be made. {error} "
            f"Or set {VARIABLE} to a file in a folder of your own; it is created if it does not exist."
        ) from error
    return Key(secret_file.read(path, WHAT))


def data_digest(key: Key, *tensors: Tensor) -> str:
    """`keyed:KEY:DIGEST`: a public name of the key, and 128 bits of keyed BLAKE2b over the tensors.

    Formal guarantees:
        If BLAKE2b with a key (RFC 7693) is a pseudorandom function, as it was designed to be, nobody without the key
        can tell digests of two data sets apart or test a candidate. Equal digests with the same key show that the data
        are equal. Whoever can run Tacit as the owner can test candidates.
    """
    digest = hashlib.blake2b(key=key.child("data").value, digest_size=16)
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"keyed:{key.digest[:8]}:{digest.hexdigest()}"


def client_identities(population: Population) -> tuple[str, ...]:
    """A keyed digest of each client's data, with those of its persons; none for more clients than a ledger lists.

    Formal guarantees: as of `data_digest`, with 64 bits.
    """
    if len(population) > MAX_IDENTIFIED or population.is_remote:
        return ()
    key, identities = load(), list[str]()
    for client in range(len(population)):
        x, y = population[client]
        begin, end = (int(each) for each in population.offsets[client : client + 2])
        persons = [] if population.persons is None else [population.persons[begin:end]]
        identities.append(data_digest(key, x, y, *persons).rpartition(":")[2][:IDENTITY_DIGITS])
    return tuple(identities)


def key_name(digest: str) -> str:
    """The public name of the key of a digest; empty: it has no key."""
    match = _KEYED.fullmatch(digest)
    return match[1] if match else ""
