import subprocess
import sys

import tacit

PUBLIC = """
AccuracySensitivity Add AdmmPrune Bandwidth BestOf BinaryCrossEntropy Budget ByImportance Card CentralGaussian Check
ClientTrace Compact CompositionError CrossEntropy Csr DataError DistributedGaussian DpSgd EllipsoidClip Enclave
Everyone Experiment FixedClip FixedRandom FixedSize Graded Grid Growing IdealSum Identity InputFeatures KMeans Keep Key
Loss MagnitudePrune Masked Mean MeanSquared MedianClip Method MetricLaplace MlflowLog ModelError Momentum NbaflGaussian
NoNoise Plain Poisson Population Preprocessing PublicClip PublicMovement QuantileClip RandomK Reals RecordClip
RecordGradient ReleasedMovement Replace Report RootBrier RootMeanSquared Run RunError Schedule SecureSum Select Sense
SequenceCrossEntropy Sgd SingleWeights Size State StorageError TacitError Task TensorBoardLog TopK TrainingError
TwoLevel UserError Vote WeightVariance WeightedMean WireError WorkerError card check client_traces methods rounds tasks
train
"""


def test_the_public_names_are_pinned():
    assert tacit.__all__ == PUBLIC.split()
    assert dir(tacit) == tacit.__all__
    assert all(getattr(tacit, name) is not None for name in tacit.__all__)


def test_star_import_and_submodules():
    names: dict[str, object] = {}
    exec("from tacit import *", names)
    assert names["train"] is tacit.train
    assert tacit.runs.directory.MANIFEST == "manifest.json"


def test_unknown_names_are_attribute_errors():
    for name in ("tarin", "_private", "__wrapped__"):
        assert not hasattr(tacit, name)


def test_importing_tacit_loads_no_torch():
    code = "import sys, tacit, tacit.cli; tacit.cli.make_parser('run'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
