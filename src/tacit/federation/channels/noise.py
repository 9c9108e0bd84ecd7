"""Who adds a mechanism's noise between sites: every client, or the server, which then must be trusted."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tacit.core import Method
from tacit.core.prices import Unproved


def in_shares(mechanism: Any, losses: float) -> Any:
    """The mechanism, or the one that it is based on, with noise that clients draw in shares.

    A simulation may draw all shares at once; between sites, that would leave the draw to the server.
    """
    changed: dict[str, Any] = {}
    if hasattr(mechanism, "single_draw"):
        changed["single_draw"] = False
    if hasattr(mechanism, "dropouts"):
        changed["dropouts"] = max(mechanism.dropouts, losses)
    if hasattr(mechanism, "base"):
        changed["base"] = in_shares(mechanism.base, losses)
    return replace(mechanism, **changed) if changed else mechanism


def has_surplus(mechanism: Any) -> bool:
    """Whether clients add more noise than a sum needs, in case some drop out."""
    return any(getattr(each, "dropouts", 0.0) > 0 for each in _layers(mechanism))


def server_draws(method: Method) -> str:
    """A sentence that the server sees messages without noise and adds the noise itself; empty: it does not."""
    mechanism, price = method.mechanism, method.mechanism.price(0)
    noisy = not isinstance(price, Unproved) or price.noisy
    single_draw = any(getattr(each, "single_draw", False) for each in _layers(mechanism))
    if not noisy or (mechanism.requires not in ("messages", "all messages") and not single_draw):
        return ""
    return (
        f"With {type(mechanism).__name__} the server sees this site's messages without noise and adds it "
        "itself. Use noise that sites add (DistributedGaussian), or trust the server: trust_server = true."
    )


def _layers(mechanism: Any) -> Iterator[Any]:
    """The mechanism, what it is based on, and so on."""
    while mechanism is not None:
        yield mechanism
        mechanism = getattr(mechanism, "base", None)
