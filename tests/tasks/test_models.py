import pytest
import torch
from torch import nn

from tacit.errors import UserError
from tacit.tasks import models

COUNTS = {
    "mcmahan-cnn": (1_663_370, (1, 28, 28), 10),
    "geyer-mlp": (531_400, (1, 28, 28), 10),
    "mlp": (203_530, (1, 28, 28), 10),
    "softmax-regression": (7_850, (1, 28, 28), 10),
    "lenet": (431_080, (1, 28, 28), 10),
    "mobilenet-v2": (2_296_922, (3, 32, 32), 10),
    "sigmoid-lenet": (13_426, (1, 28, 28), 10),
    "digits-sigmoid-lenet": (8_026, (1, 8, 8), 10),
    "femnist-cnn": (1_206_590, (1, 28, 28), 62),
    "hospital-net": (11, (3,), 1),
    "medical-net": (1_496_601, (7280,), 1),
    "digits-net": (4_810, (1, 8, 8), 10),
    "digits-mlp": (85_002, (1, 8, 8), 10),
    "linear": (2, (2,), 1),
}


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_every_model_is_pinned():
    assert set(COUNTS) == set(models.MODELS)


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_and_shapes(name):
    parameters, shape, outputs = COUNTS[name]
    model = models.find_model(name)()
    assert count(model) == parameters
    assert model(torch.rand(2, *shape)).shape == (2, outputs)
    assert not list(model.buffers())


def test_an_unknown_name_points_to_the_nearest():
    with pytest.raises(UserError, match=r"Expected model in .*got 'mobilenet'\. Did you mean 'mobilenet-v2'\?"):
        models.find_model("mobilenet")


def test_both_norms_of_mobilenet_have_the_same_parameters():
    group, batch = models.mobilenet_v2(norm="group"), models.mobilenet_v2(norm="batch")
    assert [p.shape for p in group.parameters()] == [p.shape for p in batch.parameters()]
    assert not list(batch.buffers())
    with pytest.raises(UserError, match="norm='layer'"):
        models.mobilenet_v2(norm="layer")  # type: ignore[arg-type]


def test_mobilenet_weights_are_those_of_the_paper():
    weights = [p.numel() for name, p in models.mobilenet_v2().named_parameters() if name.endswith("weight")]
    assert sum(weights) == 2_279_368  # what ESMFL counts as 2.28M


@pytest.mark.parametrize("name", ["mcmahan-cnn", "femnist-cnn", "medical-net"])
def test_keras_starts(name):
    torch.manual_seed(0)
    for parameter in models.find_model(name)().state_dict().values():
        if parameter.dim() == 1:
            assert not parameter.any()
        else:
            field = parameter[0][0].numel()
            bound = (6 / (parameter.shape[0] * field + parameter.shape[1] * field)) ** 0.5
            assert 0.9 * bound < float(parameter.abs().max()) <= bound * 1.000001


def test_geyer_start_is_truncated():
    for weight in models.geyer_mlp().state_dict().values():
        scaled = weight * weight.shape[1] ** 0.5
        assert float(scaled.abs().max()) <= 2
        assert float(scaled.std()) == pytest.approx(0.88, abs=0.05)  # the deviation of a normal cut at ±2


def test_dropout_is_a_choice():
    kinds = [type(layer) for layer in models.femnist_cnn(dropout=True)]
    assert kinds.count(nn.Dropout) == 2
    assert count(models.femnist_cnn(dropout=True)) == 1_206_590
