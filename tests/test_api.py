import json
import subprocess
import sys
from collections.abc import Iterable

import pytest

import tacit

PUBLIC = """
train rounds Run State Report MlflowLog TensorBoardLog
Task Population Preprocessing tasks
CrossEntropy BinaryCrossEntropy SequenceCrossEntropy MeanSquared RootMeanSquared RootBrier
describe survival regress Analysis
Method Budget methods pieces card Card probe
TacitError UserError CompositionError DataError ModelError TrainingError
"""
PIECES = """
AccuracySensitivity Add AdmmPrune BestOf ByImportance CentralGaussian Compact Csr DistributedGaussian DistributedLaplace
DpSgd EllipsoidClip Enclave Everyone FixedClip FixedRandom FixedSize Graded Grid Growing IdealSum Identity InputFeatures
KMeans Keep KeepSum MagnitudePrune Masked Mean MedianClip MetricLaplace Momentum NbaflGaussian NoNoise Plain Poisson
PublicClip PublicMovement QuantileClip QuerySum RandomK Reals RecordClip RecordDescent RecordGradient ReleasedMovement
Replace Schedule SecureSum Select Sense Sgd SingleWeights Size StandardisedDescent TermClip TopK Total TwoLevel Vote
WeightVariance WeightedMean
"""


def test_the_public_names_are_pinned():
    assert tacit.__all__ == PUBLIC.split()
    assert dir(tacit) == sorted(tacit.__all__)
    assert tacit.pieces.__all__ == PIECES.split()
    assert all(getattr(tacit, name) is not None for name in tacit.__all__)


def test_star_import_and_submodules():
    names: dict[str, object] = {}
    exec("from tacit import *", names)
    assert names["train"] is tacit.train
    assert tacit.runs.directory.MANIFEST == "manifest.json"


def test_a_piece_is_found_where_the_error_says():
    with pytest.raises(AttributeError, match=r"Use tacit\.pieces\.SecureSum\."):
        _ = tacit.SecureSum


def test_unknown_names_are_attribute_errors():
    for name in ("tarin", "_private", "__wrapped__"):
        assert not hasattr(tacit, name)


def test_importing_tacit_loads_no_torch():
    code = "import sys, tacit, tacit.cli; tacit.cli.make_parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


HEAVY = ("scipy", "dp_accounting", "matplotlib", "pandas", "polars", "pyarrow", "sklearn", "rich", "grpc", "mlflow",
         "tensorboard", "onnx", "onnxruntime", "torch.onnx", "torch._dynamo", "torch.utils.tensorboard")  # fmt: skip
STEPS = """
import json, sys
names, steps = json.loads(sys.argv[1])
for code in steps:
    exec(code)
    print("imported", *[name for name in names if name in sys.modules])
"""


def imported(names: Iterable[str], *steps: str) -> list[list[str]]:
    """Which of these packages a new interpreter has imported after each of these steps."""
    command = [sys.executable, "-c", STEPS, json.dumps([list(names), steps])]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split()[1:] for line in lines if line.startswith("imported")]


def test_commands_import_no_more_than_they_need(tmp_path):
    """By counting and not by time: a run and its report need PyTorch, and none of what takes long beside it."""
    run = f"run fedavg --rounds 1 --set cohort=2 epochs=1 --workers 1 --out {tmp_path}/run"
    lines = (run, f"report {tmp_path}/run", f"compare {tmp_path}/run", f"export {tmp_path}/run --to state-dict")
    commands = [f"from tacit.cli import main; assert main({line.split()!r}) == 0" for line in lines]
    light = ("torch", "numpy", "tacit.api")
    found = imported((*light, *HEAVY), "import tacit", "tacit.train, tacit.TensorBoardLog", *commands)
    assert found == [[], *[[*light]] * 5]
