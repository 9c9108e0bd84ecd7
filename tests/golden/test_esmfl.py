"""The numbers of the ESMFL paper that need no training: parameter counts, volumes, sizes of uploads."""

import pytest
import torch

from tacit.papers.study import read_study
from tacit.pieces.samplers import FixedSize
from tacit.pieces.trainers import AdmmPrune, Keep, MagnitudePrune
from tacit.runs.bandwidth import csr_cost, volume
from tacit.tasks.models import lenet, mobilenet_v2
from tacit.wire.sparse import Compact, Csr, WireFormat

LENET, MOBILENET = 430_000, 2_280_000  # weights, as the paper rounds them
UPLOADS = {9.99: 521_156, 87.0: 42_040}  # bytes, from the data sizes in Table 3: 52.12 and 4.20 MB for 100 clients


def weights(model: torch.nn.Module) -> int:
    """Weights as the paper counts them: all tensors named weight."""
    return sum(p.numel() for name, p in model.named_parameters() if name.endswith("weight"))


def test_parameters() -> None:
    """Table 1: 430K and 2.28M; the latter includes the scales of normalisation."""
    assert weights(lenet()) == 430_500
    assert sum(p.numel() for p in lenet().parameters()) == 431_080
    assert weights(mobilenet_v2()) == 2_279_368
    assert sum(p.numel() for p in mobilenet_v2().parameters()) == 2_296_922


def test_dense_volumes() -> None:
    """Table 2, non-sparse: 1720 MB and 18.24 GB."""
    assert volume(4 * LENET, 4 * LENET, rounds=50, cohort=10) == 1720
    assert volume(4 * MOBILENET, 4 * MOBILENET, rounds=100, cohort=10) == 18_240


@pytest.mark.parametrize(("compression", "printed"), [(9.99, 1120.58), (87.0, 881.02)])
def test_sparse_volumes(compression: float, printed: float) -> None:
    """Table 2, sparse: dense downloads and sparse uploads."""
    assert round(volume(UPLOADS[compression], 4 * LENET, rounds=50, cohort=10), 2) == printed


def test_sparse_volume_of_mobilenet() -> None:
    """Table 2 and Table 3: 12.53 GB is 9.12 GB down and 1000 uploads of 3.4056 MB."""
    assert round(volume(3_405_600, 4 * MOBILENET, rounds=100, cohort=10) / 1000, 2) == 12.53


def test_savings() -> None:
    """Table 2, last column: 15.68 and 48.78 are correct, 15.85 (abstract) and 48.88 (text) are not."""
    for dense, sparse, printed in (
        (1720, 1120.58, 34.85),
        (1720, 881.02, 48.78),
        (18.24, 15.38, 15.68),
        (18.24, 12.53, 31.3),
    ):
        assert round(100 * (1 - sparse / dense), 2) == printed


def test_the_upload_at_ten_per_cent() -> None:
    """521,156 bytes: 10.01 % of 430,000 weights with 64-bit columns, and 580 64-bit row pointers."""
    assert round(0.1001 * LENET) == 43_043
    assert csr_cost(43_043, pointers=580, index=8) == UPLOADS[9.99]


def test_the_upload_at_one_per_cent() -> None:
    """42,040 bytes is within half a per cent of 32-bit CSR: no single encoding gives both of the paper's uploads."""
    assert csr_cost(4950, pointers=580, index=4) == 41_920
    assert abs(csr_cost(4950, pointers=580, index=4) / UPLOADS[87.0] - 1) < 0.005


def upload(counts: tuple[int, ...]) -> torch.Tensor:
    """A pruned LeNet at its initial weights, with dense biases."""
    torch.manual_seed(0)
    shapes = tuple(tuple(p.shape) for p in lenet().parameters())
    return Keep(counts=counts).project(torch.cat([p.detach().flatten() for p in lenet().parameters()]), shapes)


@pytest.mark.parametrize(
    ("counts", "plain", "ours"),
    [((330, 4250, 38_000, 513), 349_411, 168_000), ((100, 1750, 2800, 300), 44_267, 23_000)],
    ids=["10 %", "1.15 %"],
)
def test_packed_uploads(counts: tuple[int, ...], plain: int, ours: int) -> None:
    """CSR has the size of its formula, our format is at least 30 % smaller, and both are lossless."""
    row = upload(counts)
    nonzero = sum(counts) + 580
    assert len(Csr().encode(row)) == 19 + csr_cost(nonzero, pointers=2) == plain
    assert len(Csr(index="int64").encode(row)) == 19 + csr_cost(nonzero, pointers=2, index=8)
    packed = Compact().encode(row)
    assert len(packed) < ours < 0.7 * plain
    formats: list[WireFormat] = [Csr(), Compact()]
    for form in formats:
        assert form.decode(form.encode(row), 431_080).numpy().tobytes() == row.numpy().tobytes()


def test_the_totals_of_table_3_include_attestation() -> None:
    columns = (
        ((2.2883, 1.1785, 8.4556, 2.5146, 2.4728, 0.8457, 0.008), 17.7635),
        ((2.3410, 0.7810, 4.4233, 0.3980, 0.5731, 1.2366, 0.008), 9.7610),
        ((2.3027, 0.6217, 3.0346, 0.1593, 0.0638, 1.2476, 0.008), 7.4377),
        ((2.2040, 4.2521, 36.2894, 15.7002, 14.5418, 21.5948, 0.3351), 94.9174),
        ((2.2374, 3.3079, 27.2418, 11.7166, 10.4928, 21.7753, 0.3272), 77.0990),
    )
    for parts, total in columns:
        assert sum(parts) == pytest.approx(total, abs=1e-9)
    last = (2.2790, 1.9331, 15.0892, 5.6256, 5.3021, 22.1206, 0.3461)
    assert sum(last) == pytest.approx(52.6957)  # printed: 52.6757


@pytest.mark.parametrize("what", ["table-1", "at-once", "tuned-alike", "table-2", "table-3", "figure-2", "figure-3"])
def test_every_row_builds_a_method_with_the_paper_s_settings(what: str) -> None:
    study = read_study(f"esmfl/{what}")
    for row in study.rows:
        method, short = row.experiment.build_method(), row.fast.build_method()
        assert isinstance(method.trainer, AdmmPrune | MagnitudePrune)
        assert short.rounds <= 3
        if what != "table-3":
            pruning = {"mnist": 50, "cifar-10": 100}[row.experiment.task]
            assert (method.sampler, method.rounds - method.trainer.warm_up) == (FixedSize(10), pruning)
            assert row.source or what == "tuned-alike"  # some of its rows are not the paper's


def test_the_printed_numbers() -> None:
    rows = {row.name: row.paper for row in read_study("esmfl/table-1").rows}
    assert [
        rows[f"LeNet {where} ESMFL"]["accuracy"] for where in ("IID 9.99x", "IID 87x", "shards 9.99x", "shards 87x")
    ] == [
        0.9878,
        0.9826,
        0.9760,
        0.9453,
    ]
    for name, paper in rows.items():
        printed = {"9.99x": 1120.58, "87x": 881.02, "4.95x": 15_380, "8.7x": 12_530}
        assert paper["volume"] == printed[name.split()[2]]
