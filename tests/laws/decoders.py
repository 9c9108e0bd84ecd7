"""Every decoder of files and messages under fuzzing: refused with Tacit's own errors, in little memory, at once.

A campaign prints its seed, with which it can be repeated:

    python tests/laws/decoders.py --inputs 1000000 [--seed 7] [--only checkpoint ledger]
"""

import argparse
import functools
import gzip
import io
import json
import re
import secrets
import sqlite3
import struct
import sys
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, too

from laws.fuzzing import BYTES, TEXT, Decoder, Mutate, fuzz, in_file, with_file
from laws.mutations import Chance, change_bytes, change_tokens, nest
from laws.party_decoders import party_decoders
from tacit import methods
from tacit.core import Budget, ClientMemory, DenseRows, Key, Messages, Method, Round, State
from tacit.core.client_half import read_broadcast
from tacit.core.prices import Gaussian, Release, Sampling
from tacit.core.serialization import read_toml
from tacit.core.server_half import broadcast, pack_broadcast
from tacit.core.state import FrameFormat
from tacit.data.encoding import Encoding, Preprocessing, TargetColumn
from tacit.data.population_files import open_population
from tacit.data.tables import parse_table, parse_texts
from tacit.enclave.attestation.verification import AttestationPolicy
from tacit.papers.comparison import Comparison
from tacit.papers.study import read_study
from tacit.pieces.channels import SecureSum
from tacit.privacy.guarantee import Guarantee, LeakageGuarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.release_json import canonical, from_json, to_json
from tacit.privacy.unit_accounting import Charge
from tacit.report.pictures import Strip
from tacit.runs import checkpoint, guarantee_file
from tacit.runs import experiment as experiments
from tacit.runs.directory import _parse_lines
from tacit.runs.manifest import MANIFEST_FORMAT as MANIFEST
from tacit.runs.manifest import Manifest, versions
from tacit.tasks.formats import image_records, parse_idx, unpack
from tacit.tasks.writers import read_leaf
from tacit.wire import frames, indices
from tacit.wire.chain import GENESIS, extend
from tacit.wire.frames import FrameKind, Part
from tacit.wire.packing import Reader, pack_chunk, pack_subset, pack_table
from tacit.wire.sparse import Compact, Csr


def sealed_frame(chance: Chance, data: bytes) -> bytes:
    """A frame whose body changes, with the right length and checksum."""
    head, body = bytearray(data[:24]), change_bytes(chance, data[24:])
    if chance.random() < 0.2:
        head[6] = chance.randrange(256)  # the number of parts
    head[16:20], head[20:24] = bytes(4), struct.pack("<I", (24 + len(body)) & 0xFFFFFFFF)
    head[16:20] = struct.pack("<I", zlib.crc32(body, zlib.crc32(bytes(head))))
    return bytes(head) + body


def sealed_checkpoint(chance: Chance, data: bytes) -> bytes:
    """A safetensors file with hostile metadata or header, and the rest as it was."""
    (length,) = struct.unpack_from("<Q", data)
    header, change = data[8 : 8 + length], chance.choice([change_tokens, nest])
    if chance.random() < 0.5:
        table = json.loads(header)
        table["__metadata__"]["tacit"] = change(chance, table["__metadata__"]["tacit"].encode()).decode(
            "utf-8", "replace"
        )
        header = json.dumps(table).encode()
    else:
        header = change(chance, header)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def regzipped(chance: Chance, data: bytes) -> bytes:
    return gzip.compress(change_bytes(chance, gzip.decompress(data)), compresslevel=1)


def rezipped(chance: Chance, data: bytes) -> bytes:
    """A valid zip archive whose members change; some are bombs."""
    return _zip({name: change_bytes(chance, content) for name, content in _unzip(data).items()})


def _npy_bomb(chance: Chance, data: bytes) -> bytes:
    """A valid archive of arrays whose headers declare other shapes and types than their data have."""
    shape = tuple(chance.choice([0, 1, 3, 32, 2**20, 2**40, -1]) for _ in range(chance.randint(0, 5)))
    dtype = chance.choice(["|u1", "<f8", "|O", "|S4000000000", "|V1", [("a", "|u1")], "U9", "|u1"])
    header = repr({"descr": dtype, "fortran_order": chance.random() < 0.3, "shape": shape}).encode() + b"\n"
    members = _unzip(data)
    name = chance.choice(list(members))
    body = members[name][128:] if chance.random() < 0.5 else bytes(chance.choice([0, 1, 5_000_000]))
    return _zip({**members, name: b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body})


def _unzip(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _zip(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def flagged_zip(chance: Chance, data: bytes) -> bytes:
    """Encrypted, or in a compression that Python does not know: set in all headers of the archive."""
    text = bytearray(data)
    flags, method = chance.choice([1, 65, 0x2041]), chance.choice([0, 1, 6, 8, 12, 14, 93, 99])
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for found in re.finditer(re.escape(signature), data):
            struct.pack_into("<HH", text, found.start() + at, flags, method)
    return bytes(text)


def rechained_ledger(chance: Chance, data: bytes) -> bytes:
    """A ledger whose rows change and whose hash chain is right, as somebody makes it who can write the file."""
    with in_file("ledger.db", data) as path:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            lines = connection.execute("SELECT line FROM rows ORDER BY number").fetchall()
            rows = [line.encode().rpartition(b', "hash": "')[0] + b"}" for (line,) in lines]
            at = chance.randrange(len(rows))
            changed = chance.choice([change_tokens, change_tokens, nest])(chance, rows[at])
            rows[at] = changed.decode("utf-8", "replace").encode()
            head = GENESIS
            for number, body in enumerate(rows):
                head = extend("ledger", head, (body,))
                line = f'{body[:-1].decode("utf-8", "replace")}, "hash": "{head.hex()}"}}'
                connection.execute("UPDATE rows SET line = ? WHERE number = ?", (line, number))
            connection.execute("UPDATE head SET number = ?, hash = ?", (len(rows) - 1, head.hex()))
            if chance.random() < 0.2:
                connection.execute(chance.choice(_STATEMENTS))
        finally:
            connection.close()
        return path.read_bytes()


_STATEMENTS = [
    "UPDATE rows SET line = x'ff00'",
    "UPDATE rows SET number = -9 WHERE number = 1",
    "UPDATE rows SET line = zeroblob(2000000)",
    "CREATE VIEW more AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    "CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM rows; END",
    "UPDATE head SET hash = 3",
]


def infinite_view(_: Chance, data: bytes) -> bytes:
    """A ledger whose table of rows is a view without end."""
    with in_file("ledger.db", data) as path:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("DROP TABLE rows")
        connection.execute(
            "CREATE VIEW rows AS WITH RECURSIVE n(number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM n) "
            "SELECT number, 'x' AS line FROM n"
        )
        connection.close()
        return path.read_bytes()


def _wire() -> Iterator[Decoder]:
    row = torch.zeros(400)
    row[::7] = torch.linspace(-1, 2, 58)
    now = Round(2, 10, 6.0, 6, Key(bytes(32)))
    like = Messages(torch.zeros(0), DenseRows(torch.zeros(0, 400)), torch.zeros(0, dtype=torch.int64))
    message = Messages(torch.tensor([3]), DenseRows(row[None]), torch.tensor([5]))
    for wire in (None, Csr(), Compact()):
        form = FrameFormat(wire)
        read = functools.partial(form.read, client=3, like=like, now=now)
        name = "message" if wire is None else f"message, {wire.name}"
        yield Decoder(name, read, [form.pack(message, 0, now)], (sealed_frame, change_bytes))
    for index in ("int32", "smallest"):
        csr = Csr(columns=20, index=index)
        yield Decoder(f"csr row, {index}", functools.partial(csr.decode, dim=400), [csr.encode(row)], BYTES)
    samples = [Compact().encode(each) for each in (row, torch.rand(400), torch.zeros(400))]
    yield Decoder("compact row", functools.partial(Compact().decode, dim=400), samples, BYTES)
    masks = [indices.pack(torch.arange(0, 400, step), 400).numpy().tobytes() for step in (1, 3, 90)]
    yield Decoder("coordinates", _coordinates, masks, BYTES)
    memory = ClientMemory(torch.rand(2, 200), Key(bytes(32)), torch.tensor([3, 70]))
    read_memory = functools.partial(ClientMemory.read, models=2)
    yield Decoder("client memory", read_memory, [memory.pack()], (sealed_frame, change_bytes))
    fields = pack_chunk(b"abc") + pack_table({1: b"1234", 7: b"5678"}, 4) + pack_subset(frozenset([4, 9]), range(12))
    yield Decoder("protocol fields", _fields, [fields], BYTES)
    ring = SecureSum().message_format
    grid = SecureSum().send(Messages(torch.tensor([3]), DenseRows(row[None])), now)
    read_ring = functools.partial(ring.read, client=3, like=grid, now=now)
    yield Decoder("ring vector", read_ring, [ring.pack(grid, 0, now)], BYTES)


def _coordinates(data: bytes) -> object:
    return indices.unpack(torch.from_numpy(np.frombuffer(data, np.uint8).copy()), 400)


def _fields(data: bytes) -> object:
    reader = Reader(data)
    found = reader.chunk(100), reader.table(4, 10), reader.subset(range(12))
    reader.expect_end()
    return found


def _broadcasts() -> Iterator[Decoder]:
    for name, args in (("fedavg", {}), ("fl-top", {"codec.selection": "RandomK(size=Size(ratio=0.1))"}), ("fl-cs", {})):
        if name not in methods.definitions():
            continue
        method = methods.make(name, args)
        state = State(0, torch.rand(400), layers=(300, 100), shapes=((30, 10), (100,)))
        now = Round(0, 100, 10.0, 10, Key(bytes(32)))
        memory = ClientMemory(state.weights, Key(bytes(32)))
        try:
            sent = broadcast(method, state, now)
        except KeyError:  # what pieces learn from public data is missing
            continue
        data = pack_broadcast(method, sent, now, first=True)

        def read(data: bytes, method: object = method, memory: ClientMemory = memory, now: Round = now) -> object:
            parts = frames.unpack(data, FrameKind.VIEW).parts
            return read_broadcast(method, parts, memory, now)  # type: ignore[arg-type]

        yield Decoder(f"broadcast of {name}", read, [data], (sealed_frame, _other_parts, change_bytes))


def _other_parts(chance: Chance, data: bytes) -> bytes:
    """A valid frame with other parts than a client expects."""
    kinds = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8]
    parts = {
        part: torch.zeros(chance.choice([0, 1, 32, 399, 400, 401]), dtype=chance.choice(kinds))
        for part in Part
        if chance.random() < 0.4
    }
    return frames.pack(FrameKind.VIEW, 0, parts, 10)


DIGEST = f"keyed:{'0' * 8}:{'0' * 32}"  # of data


def _run_files() -> Iterator[Decoder]:
    entry = {
        "name": "fedavg",
        "args": {"rounds": 3},
        "form": methods.make("fedavg").to_plain(),
        "nominal": {"epsilon": 1.0},
    }
    task = {"name": "digits", "args": {}, "clients": 3, "samples": 9, "parameters": 5, "loss": "L()", "data": DIGEST}
    manifest = {"method": entry, "task": task, "seed": 0, "device": "cpu", "evaluate_every": 1, "versions": versions()}
    text = json.dumps({**manifest, "format": MANIFEST, "status": "running"}).encode()
    yield Decoder("manifest", functools.partial(Manifest.from_bytes, file=Path("m")), [text], TEXT)
    report = {
        "round": 1, "clients": [1, 2], "rejected": [], "up": [3, 4], "down": [5, 6], "norm": 0.5, "variance": "inf",
        "scale": None, "metrics": {"loss": 1.5}, "seconds": 0.1, "overhead": {"a": {"up": 1, "down": 2}},
        "grid_step": {"size": 0.5, "inflation": 0.0}, "timings": {"train": 1.0},
    }  # fmt: skip
    lines = [json.dumps({**report, "up": up}).encode() for up in ([3, 4], [3, -2])]
    yield Decoder("round", lambda data: _parse_lines([data], Path("r")), lines, TEXT)
    described = {
        "clients": 2,
        "samples": 3,
        "x": {"dtype": "float32", "shape": [4]},
        "y": {"dtype": "int64", "shape": []},
    }
    populations = [json.dumps({**described, "persons": known}).encode() for known in (False, True)]
    yield Decoder("population", _opened_population, populations, TEXT)
    encoding = Encoding(
        numbers={"age": (20.0, 90.0), "day": ("2020-01-31", "2024-12-31")},
        categories={"sex": ("", "f")},
        indicators=("age",),
        target=TargetColumn("died", ("0", "1")),
        client="hospital",
        dropped=("name",),
        preprocessing=Preprocessing("private", "ages."),
    )
    number = replace(encoding, target=TargetColumn("days", limits=(0.0, 30.0)))
    yield Decoder("encoding", with_file("encoding.json", _encoded), [encoding.to_bytes(), number.to_bytes()], TEXT)
    toml = b'[numbers]\nage = [0, 110]\nday = ["2020-01-01", "2024-12-31"]\n[categories]\nsex = ["f", "m"]\n'
    yield Decoder("declared encoding", with_file("encoding.toml", _encoded), [toml], TEXT)
    proved = Guarantee(epsilon=1.5, delta=1e-5, rounds=3, adjacency="zero-out", not_covered=("This.",))
    leaked = LeakageGuarantee(leakage=2.4, per_round=0.4, radius=0.05, rounds=6)
    guarantees = []
    with in_file("g", b"") as path:
        for each in (proved, leaked):
            guarantee_file.write(path, {each.unit: each})
            guarantees.append(path.read_bytes())
    yield Decoder("guarantee", functools.partial(guarantee_file.parse, file=Path("g")), guarantees, TEXT)
    state = State(3, torch.rand(20), {"server/momentum": torch.rand(20), "n": torch.tensor(3)})
    with in_file("c", b"") as path:
        checkpoint.write(path, state)
        written = path.read_bytes()
    yield Decoder("checkpoint", with_file("c", checkpoint.read), [written], (change_bytes, sealed_checkpoint))
    yield Decoder(
        "ledger", with_file("l.db", _open_ledger), [_ledger()], (change_bytes, rechained_ledger, infinite_view)
    )
    release = canonical(to_json(Release(Gaussian(1.5), sampling=Sampling("poisson", 0.1)))).encode()
    yield Decoder("release", lambda data: from_json(_json(data)), [release], TEXT)


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _open_ledger(path: Path) -> object:
    with Ledger.open(path) as ledger:
        return ledger.entries


def _ledger() -> bytes:
    with in_file("new.db", b"") as path:
        with Ledger.open(path, Budget(8, 1e-3)) as ledger:
            release = Release(Gaussian(2.0), sampling=Sampling("poisson", 0.1))
            for number in range(1, 4):
                entry = ledger.reserve("run", number, Charge.of_clients(release))
            ledger.release(entry, "digest")
        return path.read_bytes()


def _texts() -> Iterator[Decoder]:
    experiment = (
        b'method = "fl-std"\ntask = "digits"\nseeds = [0, 1]\n'
        b"[args]\nrounds = 5\ndescent.lr = 0.5\n[task-args]\nclients = 60\n"
    )
    yield Decoder("experiment", with_file("e.toml", _check_experiment), [experiment], TEXT)
    study = (
        b'title = "T"\ncolumns = ["accuracy"]\n[[rows]]\nname = "a"\nmethod = "fedavg"\nseeds = [0, 1]\n'
        b'args = { rounds = 3 }\nfast = { args = { rounds = 1 } }\n[figure]\ny = ["accuracy"]\nlog = ["accuracy"]\n'
    )
    yield Decoder("study", with_file("s.toml", lambda path: read_study("a/b", {"a/b": path})), [study], TEXT)
    policy = b'measurements = ["00ff"]\nsigners = []\nstatuses = ["UpToDate"]\n'
    read_policy = functools.partial(read_toml, kind=AttestationPolicy)
    yield Decoder("policy", with_file("p.toml", read_policy), [policy], TEXT)
    texts = [methods.make(name).canonical.encode() for name in ("fedavg", "geyer", "esmfl")]
    read_method = lambda data: Method.from_canonical(data.decode("utf-8", "replace"))  # noqa: E731
    yield Decoder("method form", read_method, texts, TEXT)
    options = b'{"rounds": 3, "descent.steps": 5, "channel": "SecureSum(value_range=4.0)", "sampler": "Poisson(0.1)"}'
    yield Decoder("options", _make_method, [options], TEXT)
    strip = {"name": "s", "shape": [1, 2, 2, 1], "pixels": "AAAAAA==", "note": ""}
    comparison = {
        "format": 1, "name": "a/b", "title": "T", "fast": False, "versions": {"tacit": "1"}, "columns": ["accuracy"],
        "stand_in": "", "rankings": [], "rows": [], "plot": {"strips": [strip]},
    }  # fmt: skip
    results = [
        json.dumps(comparison).encode(),
        *(path.read_bytes() for path in _saved() if path.stat().st_size < 10_000),
    ]
    yield Decoder("saved results", lambda data: Comparison.from_bytes(data, "here"), results[1:] or results, TEXT)
    yield Decoder("strip", _strip, [json.dumps(strip).encode()], TEXT)


def _strip(data: bytes) -> object:
    from tacit.core.serialization import Source, read_json

    return read_json(data, Strip, Source(label="here")).images


def _saved() -> list[Path]:
    return sorted((Path(__file__).resolve().parents[2] / "experiments").glob("*/results/*.json"))


def _check_experiment(path: Path) -> object:
    experiment = experiments.read(path)
    experiment.check_names()
    return experiment.build_method(), experiment.convert_args()


def _make_method(data: bytes) -> object:
    options = _json(data)
    return methods.make("fl-std", options) if isinstance(options, dict) else None


def _data() -> Iterator[Decoder]:
    records = np.random.default_rng(0).integers(0, 10, (3, 3073), dtype=np.uint8).tobytes()
    limit = len(records)
    packed = {"a.gz": gzip.compress(records), "a.zip": _zip({"a/batch.bin": records}), "a.tar.gz": _tar(records)}
    packed["a.npz"] = _npz()
    packed["a.raw"] = records
    changes: dict[str, Sequence[Mutate]] = {
        "a.gz": (change_bytes, regzipped),
        "a.zip": (change_bytes, rezipped, flagged_zip),
        "a.tar.gz": (change_bytes, regzipped),
        "a.npz": (change_bytes, rezipped, flagged_zip, _npy_bomb),
        "a.raw": BYTES,
    }
    for name, data in packed.items():
        read = functools.partial(unpack, member="batch.bin", limit=limit)
        yield Decoder(f"file {name[1:]}", with_file(name, read), [data], changes[name])
    idx = struct.pack(">BBBB2I", 0, 0, 8, 2, 3, 4) + bytes(12)
    yield Decoder(
        "idx", functools.partial(parse_idx, name="idx"), [idx, idx[:2] + b"\x0c\x01\0\0\0\1" + bytes(4)], BYTES
    )
    yield Decoder("image records", image_records, [records], BYTES)
    table = b'a, b,"c"\n1,2,"x\ny"\n3,4,5\n'
    yield Decoder("csv", functools.partial(parse_texts, name="t"), [table], (change_bytes, change_tokens, nest))
    own = b"\xef\xbb\xbfage;day;sex\n4,5;2020-01-31;f\n;?;m\n"
    edits = (change_bytes, change_tokens, nest)
    yield Decoder(
        "own table", functools.partial(parse_table, name="t"), [own, table, own.decode().encode("utf-16")], edits
    )
    leaf = {"users": ["w"], "user_data": {"w": {"x": [[0.5] * 784] * 2, "y": [1, 61]}}, "num_samples": [2]}
    yield Decoder("leaf", with_file("l.json", lambda path: read_leaf(path.parent)), [json.dumps(leaf).encode()], TEXT)


def _encoded(path: Path) -> object:
    """Rows by the encoding in a file, and what it says of itself."""
    found = Encoding.read(path)
    found.problems({"age": [40.0], "sex": ["f"], "day": np.array(["2021-02-03"], "M8[D]")})
    return found.digest, Encoding.from_plain(found.to_plain(), "it").names


def _opened_population(data: bytes) -> object:
    """A population on disk with this description, whose files are of two clients with three samples."""
    with tempfile.TemporaryDirectory() as folder:
        for name, octets in (("x", 48), ("y", 24), ("indices", 24), ("offsets", 24), ("persons", 24)):
            Path(folder, name).write_bytes(bytes(octets))
        Path(folder, "population.json").write_bytes(data)
        return open_population(folder)


def _tar(content: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name in ("other.txt", "batch.bin"):
            entry = tarfile.TarInfo(f"folder/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def _npz() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.zeros((3, 3, 32, 32), np.uint8), y=np.zeros(3, np.uint8))
    return stream.getvalue()


def all_decoders() -> list[Decoder]:
    """All decoders, of messages and of files."""
    return [*_wire(), *_broadcasts(), *_run_files(), *_texts(), *_data(), *party_decoders()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs for every decoder")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--only", nargs="+", default=[], help="names of decoders")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"seed {args.seed}, {args.inputs} inputs for every decoder", flush=True)  # noqa: T201
    failed = 0
    for decoder in all_decoders():
        if args.only and decoder.name not in args.only:
            continue
        outcome = fuzz(decoder, args.seed, args.inputs)
        failed += not outcome.clean
        print(  # noqa: T201
            f"{decoder.name:24} refused {outcome.refused:>8} foreign {len(outcome.foreign):>4} "
            f"slowest {outcome.slowest:7.3f} s memory {outcome.memory >> 20:>5} MiB",
            *outcome.foreign[:5],
            sep="\n  ",
            flush=True,
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
