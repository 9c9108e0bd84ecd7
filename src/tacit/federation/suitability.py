"""Whether and how a method runs between sites: what is adapted to their number, and what is refused with a sentence."""

from dataclasses import replace
from typing import Any

from tacit.core import Method, Plain
from tacit.core.interfaces import Channel
from tacit.core.prices import Unproved
from tacit.errors import TacitError
from tacit.pieces.channels import Enclave, SecureSum

FEW = 64  # up to so many sites, secrets are shared on a complete graph
LOSSES = 0.25  # the least fraction of few sites that may be lost: one of four, two of eight
CORRUPT = 0.25  # the least fraction of few sites that may collude with the server


def federated(method: Method, sites: int, *, least: int = 1, hardware: bool = False) -> Method:
    """The method as sites run it: every client draws its own noise, and few sites survive a loss.

    A simulation may draw all shares of the noise at once; between sites that would make the server draw them. Fractions
    that suit cohorts of hundreds tolerate nobody among eight, so that up to 64 sites at least a quarter may be lost and
    a quarter may collude. With noise in shares this changes neither ε nor the noise of a sum: what is too much is
    removed once it is known who delivered. An enclave, on `hardware` or simulated, releases no sum of fewer than
    `least` sites.

    Example:
        >>> from tacit import methods
        >>> adapted = federated(methods.make("fl-std-dp", {"cohort": 8}), sites=8)
        >>> adapted.mechanism.at_once, adapted.channel.dropout, adapted.mechanism.dropouts
        (False, 0.25, 0.25)
    """
    if isinstance(method.channel, Enclave):
        inside = replace(method.channel, least=max(method.channel.least, least), conversation=False, hardware=hardware)
        return replace(method, channel=inside, mechanism=_in_shares(method.mechanism, 0.0))
    if not isinstance(method.channel, SecureSum):
        return method
    losses, corrupt = method.channel.dropout, method.channel.corrupt
    if sites <= FEW:
        losses, corrupt = max(losses, LOSSES), max(corrupt, CORRUPT)
    channel = replace(method.channel, dropout=losses, corrupt=corrupt, conversation=False)
    return replace(method, channel=channel, mechanism=_in_shares(method.mechanism, losses))


def _in_shares(mechanism: Any, losses: float) -> Any:
    """The mechanism, or the one that it is based on, with noise that clients draw in shares."""
    changed: dict[str, Any] = {}
    if hasattr(mechanism, "at_once"):
        changed["at_once"] = False
    if hasattr(mechanism, "dropouts"):
        changed["dropouts"] = max(mechanism.dropouts, losses)
    if hasattr(mechanism, "base"):
        changed["base"] = _in_shares(mechanism.base, losses)
    return replace(mechanism, **changed) if changed else mechanism


def _surplus(mechanism: Any) -> bool:
    """Whether clients add more noise than a sum needs, in case some are lost."""
    base = getattr(mechanism, "base", None)
    return getattr(mechanism, "dropouts", 0.0) > 0 or (base is not None and _surplus(base))


def obstacle(method: Method, sites: int) -> str:
    """Why this method cannot run between so many sites, in a sentence; empty: it can.

    Example:
        >>> from tacit import methods
        >>> print(obstacle(methods.make("fl-std", {"channel": "IdealSum()"}), 10))
        fl-std assumes IdealSum, a sum that nobody computes between sites. Use channel = "SecureSum()".
    """
    channel = method.channel
    if not isinstance(channel, Plain | SecureSum | Enclave):
        return (
            f"{method.name} assumes {type(channel).__name__}, a sum that nobody computes between sites. "
            'Use channel = "SecureSum()".'
        )
    if method.patience is not None:
        return (
            f"{method.name} stops early by the loss on held-out data of the server, which has none in a federation. "
            "Leave patience out."
        )
    return _too_few(method, sites)


def _too_few(method: Method, sites: int) -> str:
    channel = method.channel
    try:
        size = method.sampler.sampling(sites, 0).mean_cohort(sites)
        if isinstance(channel, SecureSum):
            cohort = max(int(size), channel.min_cohort)
            if cohort > sites:
                return f"SecureSum needs at least {channel.min_cohort} sites, got {sites}. Enrol more."
            channel.parameters_for(cohort).graph(cohort)
        if isinstance(channel, Enclave):
            channel.check_messages(method)
            if _surplus(method.mechanism):
                return (
                    f"{method.name} adds surplus noise, which an enclave does not remove. Use mechanism.dropouts = 0."
                )
            channel.check_cohorts(method, sites)
    except TacitError as error:
        return f"{method.name} does not fit {sites} sites. {error}"
    return ""


def channel_name(channel: Channel) -> str:
    """The name of a channel in a site's policy: `plain`, `enclave`, `secure-sum/active_server` or `…/semi_honest`."""
    if isinstance(channel, SecureSum):
        return f"secure-sum/{channel.level}"
    return type(channel).__name__.lower()


def server_draws_noise(method: Method) -> bool:
    """Whether the server sees messages without their noise and adds it itself, so that it must be trusted.

    Noise that an enclave adds is not the server's, if sites verify the enclave. A simulated one proves nothing: who
    runs its machine, presumably the server, sees messages without noise, or with a single share of it.
    """
    if isinstance(method.channel, Enclave):
        return not method.channel.hardware and method.mechanism.requires != "anything"
    price = method.mechanism.price(0)
    noisy = not isinstance(price, Unproved) or price.noisy
    return noisy and (method.mechanism.requires in ("messages", "all messages") or _drawn_at_once(method.mechanism))


def _drawn_at_once(mechanism: Any) -> bool:
    return bool(getattr(mechanism, "at_once", False)) or _drawn_at_once_below(mechanism)


def _drawn_at_once_below(mechanism: Any) -> bool:
    base = getattr(mechanism, "base", None)
    return base is not None and _drawn_at_once(base)
