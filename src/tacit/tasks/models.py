"""The models of the papers as plain `torch.nn` modules, and replacements for batch normalisation.

Each factory takes keywords only and returns a module at its initial weights, drawn from PyTorch's global generator (a
task calls it under the run's seed). Most are one `nn.Sequential` of plain layers, which the engine's fast kernels
support. Parameter counts are those of the papers.

Running statistics of batch norm would be averaged without being trained, would reveal the distribution of the clients'
data, and are not bounded by clipping. A model is therefore normalised without them, or refused.
"""

import copy
import math
from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tacit.core.schema import choose
from tacit.errors import one_of, whole, within

_Net = TypeVar("_Net", bound=nn.Module)


def mcmahan_cnn(*, channels: int = 1, outputs: int = 10) -> nn.Sequential:
    """Two 5x5 convolutions of 32 and 64 channels with same padding, 512 hidden units: 1,663,370 parameters.

    For 28x28 images. Glorot-uniform initialisation with zero biases, the default of Keras, which FL-TOP used.

    Example:
        >>> sum(p.numel() for p in mcmahan_cnn().parameters())
        1663370
    """
    net = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(7 * 7 * 64, 512),
        nn.ReLU(),
        nn.Linear(512, outputs),
    )
    return _glorot(net)


def geyer_mlp() -> nn.Sequential:
    """784-600-100-10 without biases: 531,400 parameters.

    Weights are initialised from a normal with standard deviation 1/√fan-in, truncated at two deviations.
    """
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 600, bias=False),
        nn.ReLU(),
        nn.Linear(600, 100, bias=False),
        nn.ReLU(),
        nn.Linear(100, 10, bias=False),
    )
    for weight in net.parameters():
        deviation = 1 / math.sqrt(weight.shape[1])
        nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    return net


def mlp(*, inputs: int = 784, hidden: int = 256, outputs: int = 10) -> nn.Sequential:
    """One hidden layer: 203,530 parameters at 784-256-10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def softmax_regression(*, inputs: int = 784, outputs: int = 10) -> nn.Sequential:
    """Logits linear in the inputs, initialised to zero: 7,850 parameters at 784-10."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def lenet() -> nn.Sequential:
    """LeNet as in Caffe, 20-50-500-10 with 5x5 kernels and no padding: 431,080 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 4 * 50, 500),
        nn.ReLU(),
        nn.Linear(500, 10),
    )


def sigmoid_lenet(*, side: int = 28, channels: int = 1, outputs: int = 10) -> nn.Sequential:
    """Three 5x5 convolutions of 12 channels, two of stride 2, with sigmoids: 13,426 parameters at 28x28.

    The network of Zhu et al. (Deep Leakage from Gradients), which is smooth enough to be inverted. Weights and biases
    are initialised uniformly in ±½, as in that paper.

    Example:
        >>> sum(p.numel() for p in sigmoid_lenet().parameters())
        13426
    """
    net = nn.Sequential(
        nn.Conv2d(channels, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(12 * ((side + 3) // 4) ** 2, outputs),
    )
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net


def digits_sigmoid_lenet() -> nn.Sequential:
    """`sigmoid_lenet` for the embedded 8x8 digits: 8,026 parameters."""
    return sigmoid_lenet(side=8)


def sigmoid_femnist_cnn(*, outputs: int = 62) -> nn.Sequential:
    """`femnist_cnn` made smooth, with sigmoids and average pooling, so that it can be inverted: as many parameters."""
    net = femnist_cnn(outputs=outputs)
    smooth = {nn.ReLU: nn.Sigmoid(), nn.MaxPool2d: nn.AvgPool2d(2)}
    return nn.Sequential(*(smooth.get(type(layer), layer) for layer in net))


def femnist_cnn(*, outputs: int = 62, dropout: bool = False) -> nn.Sequential:
    """Two 3x3 convolutions of 32 and 64 channels, one pooling, 128 hidden units: 1,206,590 parameters.

    The group-privacy paper's table lists 2x2 kernels, which would give 1,400,990 parameters; 3x3 kernels without
    padding give the count that it states. Glorot-uniform initialisation with zero biases.
    """
    light, heavy = ([nn.Dropout(0.25)], [nn.Dropout(0.5)]) if dropout else ([], [])
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *light,
        nn.Flatten(),
        nn.Linear(12 * 12 * 64, 128),
        nn.ReLU(),
        *heavy,
        nn.Linear(128, outputs),
    )
    return _glorot(net)


def tanh_cnn() -> nn.Sequential:
    """Two convolutions of 16 and 32 channels and 32 hidden units, with tanh: 26,010 parameters.

    The network for MNIST with privacy for records of Papernot et al. (AAAI 2021), which showed that bounded activations
    lose less to clipping than ReLU; as in Tramèr and Boneh (ICLR 2021), Table 9.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def hospital_net() -> nn.Sequential:
    """3-2-1 with ReLU: 11 parameters."""
    return nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))


def medical_net(*, inputs: int = 7280, hidden: int = 200) -> nn.Sequential:
    """Two hidden layers and one logit: 1,496,601 parameters at 7280-200-200-1.

    The paper's sigmoid is part of `BinaryCrossEntropy`. Glorot-uniform initialisation with zero biases.
    """
    net = nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 1),
    )
    return _glorot(net)


def digits_net(*, hidden: int = 64) -> nn.Sequential:
    """64-64-10 for the embedded 8x8 digits: 4,810 parameters."""
    return mlp(inputs=64, hidden=hidden)


def digits_mlp() -> nn.Sequential:
    """64-256-256-10 for the embedded 8x8 digits: 85,002 parameters, more than the task needs."""
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def linear(*, inputs: int = 2) -> nn.Sequential:
    """A linear map xᵀθ without a bias, initialised to a standard normal θ: 2 parameters."""
    layer = nn.Linear(inputs, 1, bias=False)
    nn.init.normal_(layer.weight)
    return nn.Sequential(layer)


class InvertedResidual(nn.Module):
    """A block of MobileNetV2: 1x1 expansion, 3x3 depthwise convolution, 1x1 projection; a shortcut if stride is 1."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = expansion * inputs
        self.body = nn.Sequential(
            *_convolution(inputs, wide, 1),
            nn.ReLU(),
            *_convolution(wide, wide, 3, stride=stride, groups=wide),
            nn.ReLU(),
            *_convolution(wide, outputs, 1),
        )
        identity = inputs == outputs
        self.shortcut = nn.Sequential(*([] if identity or stride > 1 else _convolution(inputs, outputs, 1)))
        self.has_shortcut = stride == 1

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.body(x)
        return projected + self.shortcut(x) if self.has_shortcut else projected


def mobilenet_v2(*, norm: Literal["group", "batch"] = "group", width: float = 1.0, outputs: int = 10) -> nn.Sequential:
    """MobileNetV2 for 32x32 images with 1x1 shortcut convolutions: 2,296,922 parameters.

    Args:
        norm: `group` normalises each sample over groups of channels; `batch` normalises over the current batch, in
            training and in evaluation, without running statistics.
        width: factor on the channels of all layers but the last, which are rounded to multiples of 8 (Sandler et al.).
        outputs: number of classes.

    Reference: Sandler et al. MobileNetV2: Inverted Residuals and Linear Bottlenecks. CVPR 2018.
    """
    one_of(("group", "batch"), norm=norm)
    within("(0, 1]", width=width)
    stages = (  # expansion, channels, blocks, stride
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    inputs = _scale(32, width)
    blocks: list[nn.Module] = [*_convolution(3, inputs, 3), nn.ReLU()]
    for expansion, channels, repeats, stride in stages:
        for repeat in range(repeats):
            blocks.append(InvertedResidual(inputs, _scale(channels, width), expansion, stride if repeat == 0 else 1))
            inputs = _scale(channels, width)
    blocks += [
        *_convolution(inputs, 1280, 1),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1280, outputs),
    ]
    net = nn.Sequential(*blocks)
    return with_group_norm(net) if norm == "group" else with_local_batch_norm(net)


def mobilenet_v2_quarter() -> nn.Sequential:
    """MobileNetV2 with a quarter of the channels, which trains three times as fast: 254,794 parameters."""
    return mobilenet_v2(width=0.25)


def with_group_norm(model: _Net, *, groups: int = 8) -> _Net:
    """A copy of a model with every batch norm replaced by a group norm with the same affine parameters.

    Args:
        model: any module; it is not changed.
        groups: groups of channels per layer; if they do not divide a layer's channels, the greatest common divisor
            of the two is used.

    Example:
        >>> with_group_norm(nn.Sequential(nn.BatchNorm2d(12)))[0].num_groups
        4
    """
    whole(1, groups=groups)

    def convert(old: _BatchNorm) -> nn.Module:
        channels = old.num_features
        return nn.GroupNorm(math.gcd(groups, channels), channels, eps=old.eps, affine=old.affine)

    return _replace_norms(model, convert)


def with_local_batch_norm(model: _Net) -> _Net:
    """A copy of a model whose batch norms use the statistics of the current batch, in training and in evaluation.

    Example:
        >>> with_local_batch_norm(nn.BatchNorm1d(3)).running_mean is None
        True
    """

    def convert(old: _BatchNorm) -> nn.Module:
        new = copy.deepcopy(old)
        new.track_running_stats = False
        new.running_mean = new.running_var = new.num_batches_tracked = None
        return new

    return _replace_norms(model, convert)


def _replace_norms(model: _Net, convert: Callable[[_BatchNorm], nn.Module]) -> _Net:
    """A deep copy with every batch norm converted."""
    if isinstance(model, _BatchNorm):
        return _convert_layer(model, convert)  # type: ignore[return-value]  # another type of layer replaces it
    converted = copy.deepcopy(model)
    for parent in list(converted.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, _convert_layer(child, convert))
    return converted


def _convert_layer(old: _BatchNorm, convert: Callable[[_BatchNorm], nn.Module]) -> nn.Module:
    """The converted layer with the parameters, device and mode of the old one."""
    new = convert(old)
    if old.affine:
        new.to(old.weight.device, old.weight.dtype)
        with torch.no_grad():
            new.get_parameter("weight").copy_(old.weight)
            new.get_parameter("bias").copy_(old.bias)
        for name in ("weight", "bias"):
            new.get_parameter(name).requires_grad_(old.get_parameter(name).requires_grad)
    return new.train(old.training)


def _scale(channels: int, width: float) -> int:
    """A fraction of the channels, as the nearest multiple of 8 that is not less than 90 % of it."""
    nearest = max(8, int(channels * width + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels * width else nearest + 8


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution without bias, and batch norm."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


def _glorot(net: nn.Sequential) -> nn.Sequential:
    """Weights uniform in ±√(6 / (fan-in + fan-out)), biases zero."""
    for parameter in net.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.zeros_(parameter)
    return net


_FACTORIES: tuple[Callable[[], nn.Module], ...] = (
    *(mcmahan_cnn, geyer_mlp, mlp, softmax_regression, lenet, mobilenet_v2, mobilenet_v2_quarter, sigmoid_lenet),
    *(
        digits_sigmoid_lenet,
        femnist_cnn,
        sigmoid_femnist_cnn,
        tanh_cnn,
        hospital_net,
        medical_net,
        digits_net,
        digits_mlp,
        linear,
    ),
)
MODELS = {factory.__name__.replace("_", "-"): factory for factory in _FACTORIES}


def find_model(name: str) -> Callable[[], nn.Module]:
    """The factory of this name; an unknown name is a `UserError` that suggests the nearest.

    Example:
        >>> find_model("lenet") is lenet
        True
    """
    return choose(MODELS, name, "model")
