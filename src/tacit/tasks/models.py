"""The models of the papers, as plain `torch.nn` modules.

Each factory takes keywords only and returns a module at its starting weights, drawn from PyTorch's global
generator (a task calls it under the run's seed). Most are one `nn.Sequential` of plain layers, which the
engine's fast kernels understand. Parameter counts are those of the papers.
"""

import math
from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from tacit.core.schema import choose
from tacit.errors import expect
from tacit.tasks.normalisation import with_group_norm, with_local_batch_norm


def mcmahan_cnn(*, channels: int = 1, outputs: int = 10) -> nn.Sequential:
    """Two 5x5 convolutions of 32 and 64 channels with same padding, 512 hidden units: 1,663,370 parameters.

    For 28x28 images. Glorot-uniform start with zero biases, the default of Keras, which FL-TOP used.

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

    Weights start as a normal truncated at two standard deviations, with deviation 1/√fan-in.
    """
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 600, bias=False),
        nn.ReLU(),
        nn.Linear(600, 100, bias=False),
        nn.ReLU(),
        nn.Linear(100, 10, bias=False),
    )
    for layer in net:
        if isinstance(layer, nn.Linear):
            deviation = 1 / math.sqrt(layer.in_features)
            nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    return net


def mlp(*, inputs: int = 784, hidden: int = 256, outputs: int = 10) -> nn.Sequential:
    """One hidden layer: 203,530 parameters at 784-256-10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def softmax_regression(*, inputs: int = 784, outputs: int = 10) -> nn.Sequential:
    """Logits that are linear in the pixels, started at zero: 7,850 parameters at 784-10."""
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
    start uniform in ±½, as there.

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
    """The same for the embedded 8x8 digits: 8,026 parameters."""
    return sigmoid_lenet(side=8)


def femnist_cnn(*, outputs: int = 62, dropout: bool = False) -> nn.Sequential:
    """Two 3x3 convolutions of 32 and 64 channels, one pooling, 128 hidden units: 1,206,590 parameters.

    The group-privacy paper's table prints 2x2 kernels, which would make 1,400,990 parameters; 3x3 kernels
    without padding give the count it states. Glorot-uniform start with zero biases.
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


def hospital_net() -> nn.Sequential:
    """3-2-1 with ReLU: 11 parameters."""
    return nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))


def medical_net(*, inputs: int = 7280, hidden: int = 200) -> nn.Sequential:
    """Two hidden layers and one logit: 1,496,601 parameters at 7280-200-200-1.

    The paper's sigmoid is part of `BinaryCrossEntropy`. Glorot-uniform start with zero biases.
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
    """64-256-256-10 for the embedded 8x8 digits: 85,002 parameters, many of which need not be trained."""
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def linear(*, inputs: int = 2) -> nn.Sequential:
    """A linear map xᵀθ without a bias, started at a standard normal θ: 2 parameters."""
    layer = nn.Linear(inputs, 1, bias=False)
    nn.init.normal_(layer.weight)
    return nn.Sequential(layer)


class InvertedResidual(nn.Module):
    """Widen by 1x1, filter each channel by 3x3, narrow by 1x1; added to the input where the stride is 1."""

    def __init__(self, inputs: int, outputs: int, widening: int, stride: int) -> None:
        super().__init__()
        wide = widening * inputs
        self.body = nn.Sequential(
            *_convolution(inputs, wide, 1),
            nn.ReLU(),
            *_convolution(wide, wide, 3, stride=stride, groups=wide),
            nn.ReLU(),
            *_convolution(wide, outputs, 1),
        )
        plain = inputs == outputs
        self.shortcut = nn.Sequential(*([] if plain or stride > 1 else _convolution(inputs, outputs, 1)))
        self.adds = stride == 1

    def forward(self, x: Tensor) -> Tensor:
        """Filtered, plus the input where the resolution is kept."""
        filtered: Tensor = self.body(x)
        return filtered + self.shortcut(x) if self.adds else filtered


def mobilenet_v2(*, norm: Literal["group", "batch"] = "group", outputs: int = 10) -> nn.Sequential:
    """MobileNetV2 for 32x32 images with 1x1 shortcut convolutions: 2,296,922 parameters.

    Args:
        norm: `group` normalises each sample over groups of channels; `batch` normalises over the batch at
            hand, in training and in evaluation, and keeps no running statistics that would have to travel.
        outputs: number of classes.
    """
    expect(norm in ("group", "batch"), f"norm={norm!r} to be 'group' or 'batch'")
    plan = (
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    blocks: list[nn.Module] = [*_convolution(3, 32, 3), nn.ReLU()]
    width = 32
    for widening, channels, repeats, stride in plan:
        for repeat in range(repeats):
            blocks.append(InvertedResidual(width, channels, widening, stride if repeat == 0 else 1))
            width = channels
    blocks += [
        *_convolution(width, 1280, 1),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1280, outputs),
    ]
    net = nn.Sequential(*blocks)
    return with_group_norm(net) if norm == "group" else with_local_batch_norm(net)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution without bias and its normalisation."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


def _glorot(net: nn.Sequential) -> nn.Sequential:
    """Weights uniform in ±√(6 / (fan-in + fan-out)), biases zero."""
    for layer in net:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mcmahan-cnn": mcmahan_cnn,
    "geyer-mlp": geyer_mlp,
    "mlp": mlp,
    "softmax-regression": softmax_regression,
    "lenet": lenet,
    "mobilenet-v2": mobilenet_v2,
    "sigmoid-lenet": sigmoid_lenet,
    "digits-sigmoid-lenet": digits_sigmoid_lenet,
    "femnist-cnn": femnist_cnn,
    "hospital-net": hospital_net,
    "medical-net": medical_net,
    "digits-net": digits_net,
    "digits-mlp": digits_mlp,
    "linear": linear,
}


def find_model(name: str) -> Callable[[], nn.Module]:
    """The factory of this name; an unknown name is a `UserError` that points to the nearest.

    Example:
        >>> find_model("lenet") is lenet
        True
    """
    return choose(MODELS, name, "model")
