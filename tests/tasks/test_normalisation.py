import pytest
import torch
from torch import nn

from tacit.errors import UserError
from tacit.tasks.normalisation import with_group_norm, with_local_batch_norm


def make() -> nn.Sequential:
    inner = nn.Sequential(nn.Conv2d(6, 10, 1), nn.BatchNorm2d(10, affine=False))
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), inner, nn.Flatten(), nn.BatchNorm1d(10))
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    return net


@pytest.mark.parametrize("convert", [with_group_norm, with_local_batch_norm])
def test_no_running_statistics_remain_and_weights_are_kept(convert):
    old = make()
    new = convert(old)
    assert not list(new.buffers())
    assert len(list(old.buffers())) == 9
    before, after = list(old.parameters()), list(new.parameters())
    assert all(torch.equal(a, b) and a is not b for a, b in zip(before, after, strict=True))
    assert torch.isfinite(new(torch.randn(4, 3, 3, 3))).all()


def test_local_batch_norm_says_the_same_as_batch_norm_in_training():
    old = make()
    x = torch.randn(4, 3, 3, 3)
    new = with_local_batch_norm(old)
    assert torch.equal(old.train()(x), new.train()(x))
    assert torch.equal(old(x), new.eval()(x))


def test_group_norm_treats_each_sample_alone():
    net, x = with_group_norm(make(), groups=2), torch.randn(4, 3, 3, 3)
    assert torch.allclose(net(x)[1:2], net(x[1:2]), atol=1e-5)


def test_a_bare_layer_and_wrong_groups():
    assert isinstance(with_group_norm(nn.BatchNorm2d(4)), nn.GroupNorm)
    with pytest.raises(UserError, match="groups=0 > 0"):
        with_group_norm(make(), groups=0)
