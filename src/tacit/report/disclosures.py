"""Who sees what, as sentences that follow from what the pieces of a method declare, and from nothing else.

`channel.messages_seen_by`, `channel.discloses`, `terms.noise_from` and `method.weighted` decide compositions, too: a
sentence here and a refusal there have one source. What a piece that is not Tacit's own declares in its docstring
(*Sees*) is quoted as its author's.
"""

import inspect

from tacit.core import Method
from tacit.core.provenance import is_ours
from tacit.core.schema import SLOTS
from tacit.core.terms import NoiseOrigin

OF_CLIENTS: dict[NoiseOrigin, str] = {  # what a client does to what it sends
    "steps": "adds noise in every step",
    "messages": "adds noise",
    "shares": "adds a share of the noise",
}


def who_sees(method: Method, cohort: int | None = None) -> dict[str, str]:
    """What each party sees.

    Args:
        method: what is run.
        cohort: the number of clients in a round; None: any.
    """
    further = dict(method.channel.discloses(cohort))
    of_server = further.pop("the server", "who takes part")
    tolerated = method.channel.tolerates(cohort)
    return {
        "the server": f"{server_sees(method)}; in each round, {of_server}",
        **further,
        **_recipients(method),
        "each client": _client_sees(method),
        **_words_of_authors(method),
        **({"tolerated": f"{tolerated}."} if tolerated else {}),
    }


def server_sees(method: Method) -> str:
    """What the server sees of the messages."""
    channel = method.channel
    if channel.messages_seen_by == "enclave":
        noise = "with noise" if method.terms.noise_from else "without noise"
        return f"only what the enclave releases: the sum of a round's messages, {noise}"
    visible = "every client's message" if channel.messages_seen_by == "server" else "only the sum of a round's messages"
    weights = ", and how many samples each client has" if method.weighted else ""
    return f"{visible}{weights}, {'with' if noise_at_client(method) else 'without'} noise"


def noise_at_client(method: Method) -> bool:
    """Whether messages leave a client with noise."""
    return any(origin in OF_CLIENTS for origin in method.terms.noise_from)


def client_noise(method: Method) -> str:
    """What a client does to protect what it sends, in a few words."""
    added = " and ".join(OF_CLIENTS[origin] for origin in method.terms.noise_from if origin in OF_CLIENTS)
    return added or "adds no noise"


def _recipients(method: Method) -> dict[str, str]:
    noise = "with noise" if method.terms.noise_from else "without noise"
    if method.trainer.sends == "terms":
        return {"clients and recipients of the result": f"the sums after every round, {noise}"}
    return {"clients and recipients of the model": f"the model after every round, {noise}"}


def _client_sees(method: Method) -> str:
    share = ", and its own share of the noise, which it could subtract" if "shares" in method.terms.noise_from else ""
    return f"beside that, its own data{share}"


def _words_of_authors(method: Method) -> dict[str, str]:
    """What the docstrings of pieces that are not Tacit's own say."""
    others = [piece for piece in (getattr(method, slot) for slot in SLOTS) if not is_ours(piece)]
    texts = {f"with {type(piece).__name__}, by its author": section(type(piece), "Sees") for piece in others}
    return {name: text for name, text in texts.items() if text}


def section(thing: object, title: str) -> str:
    """Return the paragraph of a docstring that begins with `title:`, as one line; empty if there is none."""
    paragraphs = (inspect.getdoc(thing) or "").split("\n\n")
    paragraph = next((text for text in paragraphs if text.startswith(f"{title}:")), "")
    return " ".join(paragraph.removeprefix(f"{title}:").split())
