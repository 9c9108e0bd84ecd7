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
    "a function of one's own": lambda: train(nn.Linear(4, 3), loss=lambda z, y: F.cross_entropy(2 * z, y)),
    "log-probabilities": lambda: train(nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1)), loss=nn.NLLLoss()),
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
        "finite regression targets, got NaN",
    ),
    "other inputs": (
        lambda: train(nn.Linear(5, 3)),
        r"does not accept the task's samples \(torch.float32, shape \(4,\)\)",
    ),
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
