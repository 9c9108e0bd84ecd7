"""Models and losses as people have them: each kind works, or is refused with the sentence that helps."""

import warnings
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import tacit
from tacit.core.losses import as_loss

torch.manual_seed(0)
X, Y = torch.randn(12, 4), torch.arange(12) % 3
REAL = torch.randn(12)
TOKENS = torch.randint(0, 20, (12, 5))
IMAGES = torch.randn(12, 1, 6, 6)
Answer = namedtuple("Answer", "logits hidden")


def train(model: Any, x: Tensor = X, y: Any = Y, **options: Any) -> tacit.Run:
    clients = [(x[:7], y[:7]), (x[7:], y[7:])]
    task = tacit.Task(model=model, clients=clients, test=(x, y), test_overlap="intended", **options)
    return tacit.train(tacit.methods.fedavg(rounds=2, cohort=2, lr=0.01), task, workers=1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(20, 6), nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.lstm(self.embedding(x))[0])
        return found


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.embedding, self.body, self.head = nn.Embedding(20, 8), nn.TransformerEncoder(layer, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(self.embedding(x)).mean(1))
        return found


class Returns(nn.Module):
    """A model that returns more than its prediction."""

    def __init__(self, pack: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second, self.pack = nn.Linear(4, 5), nn.Linear(5, 3), pack

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x).tanh()
        return self.pack(self.second(hidden), hidden)


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x)[..., 0]
        return found


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.embedding(x))
        return found


class Scaled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Unused(nn.Module):
    """Convolutions are trained by the reference learner."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear, self.unused = nn.Conv2d(1, 2, 3), nn.Linear(32, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(self.conv(x).flatten(1))
        return found


class Noisy(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.5, self.training))


class LowRank(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return found


class OwnParameter(nn.Module):
    class Weight(nn.Parameter):
        pass

    def __init__(self) -> None:
        super().__init__()
        self.weight = OwnParameter.Weight(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts, self.gate = nn.ModuleList(nn.Linear(4, 3) for _ in range(2)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        share = self.gate(x).softmax(-1)
        return torch.stack([expert(x) * share[..., i, None] for i, expert in enumerate(self.experts)]).sum(0)


class Fails(nn.Linear):
    def __init__(self, error: Exception) -> None:
        super().__init__(4, 3)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


class Small(nn.Linear):
    """Fails on larger batches than those on which it is tried."""

    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 2:
            raise RuntimeError("no room")
        return super().forward(x)


def hooked() -> nn.Module:
    model = nn.Linear(4, 3)
    model.register_forward_hook(lambda _, __, found: 2 * found)
    return model


def pruned() -> nn.Module:
    model = nn.Linear(4, 3)
    prune.l1_unstructured(model, "weight", 0.5)
    return model


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs * self.weight, y)


def adapter() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    return model


WORKS: dict[str, Callable[[], tacit.Run]] = {
    "a module": lambda: train(nn.Linear(4, 3)),
    "a function": lambda: train(lambda: nn.Linear(4, 3)),
    "a convolution": lambda: train(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3)), IMAGES),
    "a recurrent net with a label per position": lambda: train(lambda: Recurrent(), TOKENS, TOKENS % 3),
    "a transformer": lambda: train(lambda: Transformer(), TOKENS),
    "tied weights": lambda: train(lambda: Tied(), TOKENS, TOKENS),
    "an adapter": lambda: train(adapter),
    "dropout": lambda: train(nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3))),
    "float64": lambda: train(nn.Linear(4, 3).double()),
    "a tuple": lambda: train(lambda: Returns(lambda a, b: (a, b)), output=0),
    "a dictionary": lambda: train(lambda: Returns(lambda a, b: {"logits": a, "hidden": b}), output="logits"),
    "a record": lambda: train(lambda: Returns(Answer), output="logits"),
    "chosen by a function": lambda: train(lambda: Returns(lambda a, b: [b, a]), output=lambda found: found[1]),
    "predictions without a column": lambda: train(lambda: Squeezed(), y=REAL, loss=tacit.MeanSquared()),
    "predictions in a column": lambda: train(nn.Linear(4, 1), y=REAL, loss=tacit.MeanSquared()),
    "whole numbers as regression targets": lambda: train(nn.Linear(4, 1), y=Y, loss=tacit.MeanSquared()),
    "two classes as booleans": lambda: train(nn.Linear(4, 1), y=Y > 0, loss=tacit.BinaryCrossEntropy()),
    "class weights": lambda: train(nn.Linear(4, 3), loss=tacit.CrossEntropy(weight=(1, 2, 3))),
    "class weights of torch": lambda: train(nn.Linear(4, 3), loss=nn.CrossEntropyLoss(weight=torch.ones(3))),
    "label smoothing": lambda: train(nn.Linear(4, 3), loss=nn.CrossEntropyLoss(label_smoothing=0.1)),
    "Huber": lambda: train(nn.Linear(4, 1), y=REAL, loss=nn.HuberLoss()),
    "Huber without a column": lambda: train(lambda: Squeezed(), y=REAL, loss=nn.HuberLoss()),
    "a function of torch": lambda: train(nn.Linear(4, 1), y=REAL, loss=F.l1_loss),
    "a function of your own": lambda: train(nn.Linear(4, 3), loss=lambda z, y: F.cross_entropy(2 * z, y)),
    "log-probabilities": lambda: train(nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1)), loss=nn.NLLLoss()),
    "another number that is ignored": lambda: train(
        lambda: Recurrent(), TOKENS, torch.where(TOKENS > 15, -1, TOKENS % 3), loss=nn.CrossEntropyLoss(ignore_index=-1)
    ),
    "probabilities as targets": lambda: train(
        nn.Linear(4, 3), y=torch.softmax(torch.randn(12, 3), 1), loss=nn.CrossEntropyLoss()
    ),
    "several labels": lambda: train(nn.Linear(4, 5), y=torch.randn(12, 5) > 0, loss=nn.BCEWithLogitsLoss()),
    "whole numbers and Huber": lambda: train(nn.Linear(4, 1), y=Y, loss=nn.HuberLoss()),
    "counts": lambda: train(nn.Linear(4, 1), y=Y, loss=nn.PoissonNLLLoss()),
    "a mean and a variance": lambda: train(
        nn.Linear(4, 2),
        y=REAL,
        loss=lambda z, y: F.gaussian_nll_loss(z[:, 0], y, z[:, 1].exp(), reduction="none"),
    ),
    "a sum": lambda: train(nn.Linear(4, 1), y=REAL, loss=lambda z, y: (z[:, 0] - y).square().sum()),
    "one number as a parameter": lambda: train(lambda: Scaled()),
    "parameters that are not used": lambda: train(lambda: Unused(), IMAGES),
    "randomness without a module": lambda: train(lambda: Noisy()),
    "low-rank adapters": lambda: train(lambda: LowRank(nn.Linear(4, 3))),
    "parametrizations": lambda: train(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))),
    "a class of parameters": lambda: train(lambda: OwnParameter()),
    "lazy layers": lambda: train(lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))),
    "hooks": lambda: train(hooked()),
    "gates": lambda: train(lambda: Gated()),
    "padding that is ignored": lambda: train(
        lambda: Recurrent(), TOKENS, torch.where(TOKENS > 15, -100, TOKENS % 3), loss=nn.CrossEntropyLoss()
    ),
}


@pytest.mark.parametrize("kind", WORKS)
def test_works(kind: str) -> None:
    run = WORKS[kind]()
    assert torch.isfinite(run.state.weights).all()
    assert run.metrics
    assert not any(name.startswith("module.") for name in run.model.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_trained_in_float32_and_says_so(dtype: torch.dtype) -> None:
    with pytest.warns(
        UserWarning, match=f"has {dtype} parameters. They are trained, clipped and sent as torch.float32"
    ):
        run = train(nn.Linear(4, 3).to(dtype))
    assert run.model.weight.dtype == torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert train(nn.Linear(4, 3).to(dtype), X.to(dtype)).state.weights.dtype == torch.float32


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a class": (lambda: train(nn.Linear), r"Linear needs arguments: missing .* Write model=lambda: Linear\(...\)"),
    "a name": (
        lambda: train("resnet18"),
        "a torch.nn.Module or a function without arguments that returns one, got str",
    ),
    "a function of something else": (lambda: train(lambda: 3), "to be a torch.nn.Module, got int"),
    "a tuple": (lambda: train(lambda: Returns(lambda a, b: (a, b))), r"got a tuple of 2. .*output=0\)"),
    "a dictionary": (
        lambda: train(lambda: Returns(lambda a, b: {"logits": a, "hidden": b})),
        r"a dictionary with logits, hidden. .*output='logits'\)",
    ),
    "no such output": (
        lambda: train(lambda: Returns(lambda a, _: {"logits": a}), output="logit"),
        "to have 'logit' .*got logits",
    ),
    "floats without a loss": (
        lambda: train(nn.Linear(4, 1), y=REAL),
        r"Client 0: .*got torch.float32 .*For regression give the task loss=tacit.MeanSquared\(\)",
    ),
    "classes as floats": (lambda: train(nn.Linear(4, 3), y=Y.float()), r"for class numbers convert with y.long\(\)"),
    "one-hot targets": (lambda: train(nn.Linear(4, 3), y=F.one_hot(Y)), r"one-hot targets: .*y.argmax\(1\)"),
    "one-hot floats": (lambda: train(nn.Linear(4, 3), y=F.one_hot(Y).float()), r"one-hot targets: .*y.argmax\(1\)"),
    "too many classes": (lambda: train(nn.Linear(4, 2)), r"Client 0: Expected labels in 0\.\.1 .*widen the last layer"),
    "a name as loss": (lambda: train(nn.Linear(4, 3), loss="mse"), "a loss such as tacit.CrossEntropy.*got 'mse'"),
    "a class as loss": (
        lambda: train(nn.Linear(4, 3), loss=nn.HuberLoss),
        r"the class HuberLoss. Write loss=HuberLoss\(\)",
    ),
    "a loss of other shapes": (
        lambda: train(nn.Linear(4, 3), y=REAL, loss=nn.NLLLoss()),
        r"FunctionLoss\(NLLLoss\(\)\) does not accept outputs of shape \(3,\) and targets of shape \(\)",
    ),
    "too few class weights": (
        lambda: train(nn.Linear(4, 3), loss=tacit.CrossEntropy(weight=(1, 2))),
        "3 class weights",
    ),
    "labels per position of another length": (
        lambda: train(lambda: Recurrent(), TOKENS, TOKENS[:, :4] % 3),
        r"logits of shape \(samples, 4, classes\) .*got \(2, 5, 3\)",
    ),
    "NaN as a target": (
        lambda: train(nn.Linear(4, 1), y=torch.where(REAL > 0, REAL, torch.nan), loss=tacit.MeanSquared()),
        r"a target for every sample of client 0, but \d of 7 have none: NaN",
    ),
    "infinity as a target": (
        lambda: train(nn.Linear(4, 1), y=torch.where(REAL > 0, REAL, torch.inf), loss=tacit.MeanSquared()),
        "finite regression targets, got NaN or infinity",
    ),
    "other inputs": (
        lambda: train(nn.Linear(5, 3)),
        r"does not accept the task's samples \(torch.float32, shape \(4,\)\)",
    ),
    "instance norm": (
        lambda: train(
            nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), nn.Linear(36, 3)), IMAGES
        ),
        "InstanceNorm2d '0' keeps running statistics.*track_running_stats=False",
    ),
    "one output for two classes": (
        lambda: train(nn.Linear(4, 1), y=Y.clamp(max=1)),
        r"one output use loss=tacit.BinaryCrossEntropy\(\)",
    ),
    "labels that begin at 1": (lambda: train(nn.Linear(4, 3), y=Y + 1), "They begin at 1: use y - 1"),
    "several labels without a loss": (
        lambda: train(nn.Linear(4, 5), y=(torch.randn(12, 5) > 0).long()),
        r"0 or 1 by itself, use loss=tacit.BinaryCrossEntropy\(\)",
    ),
    "a loss without gradient": (
        lambda: train(nn.Linear(4, 3), loss=lambda z, y: (z.argmax(-1) != y).float()),
        "no gradient, so nothing would be learned",
    ),
    "a loss with parameters": (
        lambda: train(nn.Linear(4, 3), loss=Learned()),
        "without trainable parameters, but Learned has weight",
    ),
    "a loss that compares samples": (
        lambda: train(nn.Linear(4, 3), loss=lambda z, _: torch.cdist(z, z).mean()),
        "to be a mean over the samples",
    ),
    "class weights in a mean": (
        lambda: train(nn.Linear(4, 3), loss=lambda z, y: F.cross_entropy(z, y, weight=torch.tensor([1.0, 5.0, 9.0]))),
        r"to be a mean over the samples .*reduction='none'",
    ),
    "targets that are broadcast": (
        lambda: train(nn.Linear(4, 1), y=REAL, loss=lambda z, y: (z[:, 0] - y).square()),
        r"Targets have the shape of the outputs, \(2, 1\)",
    ),
    "a number as loss": (
        lambda: train(nn.Linear(4, 3), loss=lambda z, y: F.cross_entropy(z, y).item()),
        "it returns float instead of a tensor",
    ),
    "smoothed labels for positions": (
        lambda: train(lambda: Recurrent(), TOKENS, TOKENS % 3, loss=nn.CrossEntropyLoss(label_smoothing=0.1)),
        r"the classes second: tacit.Task\(..., output=lambda z: z.movedim\(-1, 1\)\)",
    ),
    "a model that fails": (lambda: train(lambda: Fails(KeyError("age"))), r"shape \(4,\)\): KeyError: 'age'"),
    "a function that fails": (
        lambda: train(lambda: nn.Linear(4, "three")),  # type: ignore[arg-type]
        "model could not be made: TypeError",
    ),
    "a model that fails on other batches": (
        lambda: train(lambda: Small()),
        "failed on a batch of client 1, client 0: RuntimeError: no room. .*any size from one sample on",
    ),
    "tokens out of range": (lambda: train(lambda: Transformer(), TOKENS + 10), "largest number in the inputs is"),
    "channels last": (
        lambda: train(nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.LazyLinear(3)), torch.zeros(12, 8, 8, 3)),
        r"channels last: use x.permute\(0, 3, 1, 2\)",
    ),
    "numbers without a dimension": (lambda: train(nn.Linear(1, 3), X[:, 0]), r"a dimension: x\[:, None\]"),
    "inputs that are not scaled": (
        lambda: train(nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 9), nn.Linear(9, 3)), X * 1e6),
        "The inputs reach .*: scale them, for example x /",
    ),
    "a module that cannot be copied": (lambda: train(pruned()), "can be copied: .*model=lambda: ..."),
    "batch norm": (lambda: train(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))), "with_group_norm"),
    "no parameters": (lambda: train(nn.Flatten()), "trainable parameters, got none"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str) -> None:
    make, words = REFUSED[kind]
    with pytest.raises(tacit.UserError, match=words):
        make()


def test_class_weights_are_those_of_torch_for_every_learner() -> None:
    weight = (0.5, 2.0, 4.0)
    model, z = nn.Linear(4, 3), torch.randn(12, 3)
    expected = F.cross_entropy(z, Y, weight=torch.tensor(weight), reduction="none")
    assert torch.allclose(tacit.CrossEntropy(weight=weight).per_sample(z, Y), expected)
    method = replace(tacit.methods.fedavg(rounds=1, cohort=2, epochs=1, lr=0.1), sampler=tacit.pieces.Everyone())
    task = tacit.Task(model=model, clients=[(X, Y)], loss=tacit.CrossEntropy(weight=weight))
    trained = tacit.train(replace(method, trainer=tacit.pieces.Sgd(lr=0.1, steps=1)), task, workers=1).model
    loss = F.cross_entropy(model(X), Y, weight=torch.tensor(weight), reduction="none").mean()
    (gradient, _) = torch.autograd.grad(loss, list(model.parameters()))
    assert torch.allclose(trained.get_parameter("weight"), model.weight - 0.1 * gradient, atol=1e-6)


def test_labels_per_position_are_averaged_over_known_positions() -> None:
    z, y = torch.randn(3, 5, 4), torch.randint(0, 4, (3, 5))
    y[0, 2:] = -100
    loss = tacit.SequenceCrossEntropy()
    each = [F.cross_entropy(z[i], y[i]) for i in range(3)]
    assert torch.allclose(loss.per_sample(z, y), torch.stack(each))
    assert torch.allclose(loss.per_sample(z.movedim(-1, 1), y), torch.stack(each))


def test_a_function_that_returns_the_mean_is_applied_to_every_sample() -> None:
    z, y = torch.randn(6, 1), torch.randn(6)
    each = as_loss(lambda a, b: (a - b).square().mean()).per_sample(z, y)
    assert torch.allclose(each, (z[:, 0] - y).square())


def test_names_of_losses_do_not_contain_addresses() -> None:
    assert repr(as_loss(F.l1_loss)) == "FunctionLoss(l1_loss)"
    assert "0x" not in repr(as_loss(lambda z, _: z.mean()))


def test_randomness_in_a_model_follows_from_the_seed() -> None:
    clients = [(X[:7], Y[:7]), (X[7:], Y[7:])]
    task = tacit.Task(model=lambda: Noisy(), clients=clients)
    method = tacit.methods.fedavg(rounds=2, cohort=2)
    first, second = (tacit.train(method, task, seed=1, randomness="seeded", workers=1).state.weights for _ in range(2))
    assert torch.equal(first, second)


def test_pruned_modules_are_made_by_a_function() -> None:
    run = train(pruned)
    assert int((run.model.get_parameter("weight_orig") * run.model.get_buffer("weight_mask") == 0).sum()) >= 6
