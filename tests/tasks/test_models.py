import pytest
import torch
from torch import nn

from tacit.errors import UserError
from tacit.tasks import models
from tacit.tasks.models import with_group_norm, with_local_batch_norm

COUNTS = {
    "mcmahan-cnn": (1_663_370, (1, 28, 28), 10),
    "geyer-mlp": (531_400, (1, 28, 28), 10),
    "mlp": (203_530, (1, 28, 28), 10),
    "softmax-regression": (7_850, (1, 28, 28), 10),
    "lenet": (431_080, (1, 28, 28), 10),
    "mobilenet-v2": (2_296_922, (3, 32, 32), 10),
    "mobilenet-v2-quarter": (254_794, (3, 32, 32), 10),
    "sigmoid-lenet": (13_426, (1, 28, 28), 10),
    "digits-sigmoid-lenet": (8_026, (1, 8, 8), 10),
    "femnist-cnn": (1_206_590, (1, 28, 28), 62),
    "sigmoid-femnist-cnn": (1_206_590, (1, 28, 28), 62),
    "tanh-cnn": (26_010, (1, 28, 28), 10),
    "hospital-net": (11, (3,), 1),
    "medical-net": (1_496_601, (7280,), 1),
    "digits-net": (4_810, (1, 8, 8), 10),
    "digits-mlp": (85_002, (1, 8, 8), 10),
    "linear": (2, (2,), 1),
}


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_every_model_is_listed():
    assert set(COUNTS) == set(models.MODELS)


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_and_shapes(name):
    parameters, shape, outputs = COUNTS[name]
    model = models.find_model(name)()
    assert count(model) == parameters
    assert model(torch.rand(2, *shape)).shape == (2, outputs)
    assert not list(model.buffers())


def test_an_unknown_name_suggests_the_nearest():
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


@pytest.mark.parametrize(("width", "parameters"), [(1.0, 2_296_922), (0.5, 715_834), (0.35, 416_698), (0.25, 254_794)])
def test_a_narrow_mobilenet_has_fewer_channels_in_multiples_of_eight(width, parameters):
    narrow = models.mobilenet_v2(width=width)
    channels = [layer.out_channels for layer in narrow.modules() if isinstance(layer, nn.Conv2d)]
    assert count(narrow) == parameters
    assert not any(each % 8 for each in channels)
    assert channels[-1] == 1280
    assert narrow(torch.rand(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("width", [0.0, -1.0, 1.5, float("nan")])
def test_a_width_that_is_no_fraction_is_refused(width):
    with pytest.raises(UserError, match=r"Expected width=.* in \(0, 1\]"):
        models.mobilenet_v2(width=width)


@pytest.mark.parametrize("name", ["mcmahan-cnn", "femnist-cnn", "medical-net"])
def test_keras_initialisation(name):
    torch.manual_seed(0)
    for parameter in models.find_model(name)().state_dict().values():
        if parameter.dim() == 1:
            assert not parameter.any()
        else:
            kernel = parameter[0][0].numel()
            bound = (6 / (parameter.shape[0] * kernel + parameter.shape[1] * kernel)) ** 0.5
            assert 0.9 * bound < float(parameter.abs().max()) <= bound * 1.000001


def test_the_initialisation_of_geyer_is_truncated():
    for weight in models.geyer_mlp().state_dict().values():
        scaled = weight * weight.shape[1] ** 0.5
        assert float(scaled.abs().max()) <= 2
        assert float(scaled.std()) == pytest.approx(0.88, abs=0.05)  # of a normal truncated at ±2


def test_dropout_is_optional():
    kinds = [type(layer) for layer in models.femnist_cnn(dropout=True)]
    assert kinds.count(nn.Dropout) == 2
    assert count(models.femnist_cnn(dropout=True)) == 1_206_590


def test_a_smooth_form_of_the_network_of_group_privacy():
    net = models.sigmoid_femnist_cnn()
    assert count(net) == 1_206_590
    assert not {nn.ReLU, nn.MaxPool2d} & {type(layer) for layer in net}
    assert net(torch.rand(2, 1, 28, 28)).shape == (2, 62)


def batch_norm_net() -> nn.Sequential:
    inner = nn.Sequential(nn.Conv2d(6, 10, 1), nn.BatchNorm2d(10, affine=False))
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), inner, nn.Flatten(), nn.BatchNorm1d(10))
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    return net


@pytest.mark.parametrize("convert", [with_group_norm, with_local_batch_norm])
def test_no_running_statistics_remain_and_weights_are_kept(convert):
    old = batch_norm_net()
    new = convert(old)
    assert not list(new.buffers())
    assert len(list(old.buffers())) == 9
    before, after = list(old.parameters()), list(new.parameters())
    assert all(torch.equal(a, b) and a is not b for a, b in zip(before, after, strict=True))
    assert torch.isfinite(new(torch.randn(4, 3, 3, 3))).all()


def test_local_batch_norm_equals_batch_norm_in_training():
    old = batch_norm_net()
    x = torch.randn(4, 3, 3, 3)
    new = with_local_batch_norm(old)
    assert torch.equal(old.train()(x), new.train()(x))
    assert torch.equal(old(x), new.eval()(x))


def test_group_norm_normalises_each_sample_by_itself():
    net, x = with_group_norm(batch_norm_net(), groups=2), torch.randn(4, 3, 3, 3)
    assert torch.allclose(net(x)[1:2], net(x[1:2]), atol=1e-5)


def test_a_bare_layer_and_wrong_groups():
    assert isinstance(with_group_norm(nn.BatchNorm2d(4)), nn.GroupNorm)
    with pytest.raises(UserError, match="groups=0 >= 1"):
        with_group_norm(batch_norm_net(), groups=0)
