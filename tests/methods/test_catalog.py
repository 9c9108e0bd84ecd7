"""Methods by name: every factory has its name, its documentation, a card, and a repr that rebuilds the method."""

import contextlib
import dataclasses
import inspect
import json
import re

import pytest

import tacit
import zoo
from tacit import methods
from tacit.core.prices import Unit, Unproved
from tacit.core.schema import SLOTS
from tacit.errors import UserError
from tacit.methods.cataloguing import entries
from tacit.report.cards import card, explain_arguments, summary
from tacit.report.disclosures import section

CATALOG = [(name, methods.find(name)) for name in sorted(methods.definitions())]
each_method = pytest.mark.parametrize(("name", "factory"), CATALOG, ids=[name for name, _ in CATALOG])


def test_the_catalogue_is_what_the_files_give():
    assert json.loads(methods.CATALOGUE.read_bytes()) == json.loads(json.dumps(entries())), "run make catalogue"


@each_method
def test_repr_rebuilds_the_method(name, factory):
    made = factory()
    public = zoo.public_names()
    assert eval(repr(made), public) == made


@each_method
def test_a_method_has_its_factory_s_name(name, factory):
    assert factory().name == name == factory.__name__.replace("_", "-")
    assert getattr(methods, factory.__name__) is factory


@each_method
def test_docstrings_agree_with_signatures(name, factory):
    doc, given = inspect.getdoc(factory) or "", list(inspect.signature(factory).parameters)
    parent = re.search(r"Args: those of ([A-Z-]+)\b", doc)
    inherited = documented(methods.find(parent[1].lower())) if parent else []
    assert [name for name in inherited if name in given] + documented(factory) == given
    assert summary(factory).endswith(".")
    assert re.search(r"\d{4}", section(factory, "Reference"))


def documented(factory):
    return re.findall(r"^    (\w+): ", inspect.getdoc(factory) or "", flags=re.MULTILINE)


@each_method
def test_cards_show_the_method_as_it_is(name, factory):
    shown = card(name, {"rounds": 7})
    assert shown.rounds == 7
    assert tuple(shown.pieces) == SLOTS
    public = zoo.public_names()
    rebuilt = {slot: eval(text, public) for slot, text in shown.pieces.items()}
    made = tacit.Method(name=name, rounds=7, budget=factory().budget, report_delta=factory().report_delta, **rebuilt)
    assert made == factory(rounds=7) == eval(shown.repr, public)
    mechanism = factory().mechanism
    price = (mechanism.with_noise_multiplier(1.0) if factory().terms.uncalibrated else mechanism).price(0)
    if factory().terms.units == (Unit.RECORD,):
        assert "for every record" in shown.guarantee
        return
    assert shown.guarantee.startswith("none: ") == isinstance(price, Unproved)


def test_pieces_are_exchanged_by_name_and_records_by_field():
    made = methods.make(
        "fl-top", {"descent.lr": "1/4", "sampler": "Everyone()", "codec.selection.size": "Size(number=3)"}
    )
    assert isinstance(made.trainer, tacit.pieces.Masked)
    assert (made.trainer.sgd.lr, made.sampler) == (0.25, tacit.pieces.Everyone())
    assert made.codec == tacit.pieces.Select(
        tacit.pieces.TopK(size=tacit.pieces.Size(number=3), lr=0.25, batch_size=10)
    )


def test_fl_std_has_the_paper_s_figures():
    std = methods.fl_std()
    assert (std.rounds, std.sampler) == (200, tacit.pieces.FixedSize(100))
    assert std.trainer == tacit.pieces.Sgd(lr=0.215, steps=5, batch_size=10)


def test_fedavg_weights_clients_by_default():
    assert methods.fedavg().aggregator == tacit.pieces.WeightedMean()
    assert methods.fedavg(weighted=False).aggregator == tacit.pieces.Mean()


@pytest.mark.parametrize(
    ("name", "args", "phrases"),
    [
        ("fl-sdt", {}, ["'fl-sdt'", "Did you mean 'fl-std'?"]),
        ("fedavg", {"learning_rate": 1}, ["method fedavg", "'learning_rate'"]),
        ("fedavg", {"epoch": 1}, ["method fedavg", "Did you mean 'epochs'?"]),
        ("fedavg", {"cohort": "many"}, ["cohort of method fedavg", "'many'"]),
        ("fedavg", {"rounds": 0}, ["rounds=0 >= 1"]),
        ("fl-std", {"descent.lr": -1}, ["lr=-1.0 > 0"]),
        ("fl-std", {"descent.rate": 1}, ["fields of descent of method fl-std", "'rate'"]),
        ("fl-std", {"sampler": "FixedSze(3)"}, ["a public class", "Did you mean 'FixedSize'?"]),
    ],
)
def test_errors_of_names_and_arguments_say_what_to_use_instead(name, args, phrases):
    with pytest.raises(UserError) as caught:
        methods.make(name, args)
    assert all(phrase in str(caught.value) for phrase in phrases), str(caught.value)


def test_a_missing_method_is_an_attribute_error_with_a_hint():
    with pytest.raises(AttributeError, match="fl-std"):
        _ = methods.fl_sdt


def test_what_the_server_sees_follows_from_the_pieces():
    weighted, uniform = card("fedavg"), card("fedavg", {"weighted": False})
    assert "how many samples" in weighted.sees["the server"]
    assert "how many samples" not in uniform.sees["the server"]
    assert "every client's message" in uniform.sees["the server"]


def test_a_guarantee_is_that_of_the_budget():
    shown = card("geyer", {"epsilon": 4, "delta": 1e-4})
    assert shown.guarantee.startswith("at most ε = 4 at δ = 0.0001 for every client (add-or-remove)")
    assert "the server is trusted" in shown.guarantee
    exact = "within a total variation distance of 8.3e-25"  # 2⁻⁸⁰: the noise is on integers
    assert shown.event == f"a sum with Gaussian noise, noise multiplier 2.5, {exact}; cohorts: Poisson(size=50)"
    assert "Poisson(size=50)" in shown.event
    assert any("Hyperparameters" in sentence for sentence in shown.uncovered)


def test_the_median_has_no_guarantee():
    assert card("geyer", {"clipping": "median"}).guarantee.startswith("none: the clipping bound is the median")


@each_method
def test_a_factory_has_at_most_eight_parameters(name, factory):
    assert len(inspect.signature(factory).parameters) <= 8


@each_method
def test_a_short_name_is_that_of_a_field(name, factory):
    for short, path in methods.short_names(name).items():
        value = inspect.signature(factory).parameters[path.partition(".")[0]].default
        for field in path.split(".")[1:]:
            assert field in [known.name for known in dataclasses.fields(value)]
            value = getattr(value, field)
        assert methods.make(name, {short: value}) == factory()
        assert short in methods.options(name)


def test_short_names_are_written_out() -> None:
    assert methods.make("fl-top-dp", {"lr": "0.1"}) == methods.make("fl-top-dp", {"descent.lr": 0.1})
    assert methods.expand("fedavg", {"lr": 0.1}) == {"lr": 0.1}
    assert methods.expand("nbafl", {"clip": 1, "rounds": 2}) == {"formula.clip": 1, "rounds": 2}
    assert methods.expand("priority-dp", {"clip": 1, "rounds": 2}) == {"ellipsoid.value": 1, "rounds": 2}
    assert "noise" not in methods.short_names("ifca")
    with pytest.raises(tacit.UserError, match="got 'learning_rate'"):
        methods.validate("fl-std", {"learning_rate": 0.1})


def test_steps_are_given_instead_of_epochs() -> None:
    trainer = methods.make("geyer", {"steps": 3}).trainer
    assert trainer == tacit.pieces.Sgd(lr=0.1, steps=3, batch_size=10)
    assert methods.make("fl-std", {"epochs": 2}).trainer == tacit.pieces.Sgd(lr=0.215, epochs=2, batch_size=10)
    with pytest.raises(tacit.UserError, match="either steps or epochs, and not both"):
        methods.make("geyer", {"steps": 3, "epochs": 2})


STRANGE = ("x", "-1", "0", "nan", "1,2", "none", "9" * 400, "Poisson(3)")


def paths(record, prefix=""):
    """The fields of a record and of the records in it."""
    for field in dataclasses.fields(record):
        yield prefix + field.name
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value):
            yield from paths(value, f"{prefix}{field.name}.")


@pytest.mark.law
@each_method
def test_a_strange_value_of_an_argument_gives_a_method_or_an_error_of_our_own(name, factory):
    for path in {*methods.options(name), *paths(factory())} - {"name"}:
        for value in STRANGE:
            with contextlib.suppress(UserError):
                assert methods.make(name, {path: value}).name == name


@pytest.mark.parametrize("name", sorted(methods.definitions()))
def test_a_card_explains_every_argument(name: str) -> None:
    explained = explain_arguments(methods.find(name))
    assert [argument for argument, text in explained.items() if len(text) < 10] == []
    assert not any("\n" in text for text in explained.values())
