import torch

from tacit.channels import IdealSum
from tacit.core import DenseRows, Messages, Plain, View, wire
from tacit.core.wire import Part


def test_it_counts_the_payload_and_shows_only_the_sum() -> None:
    channel = IdealSum()
    messages = Messages(torch.arange(3), DenseRows(torch.randn(3, 7)))
    assert channel.upload(messages) == (24 + 12 + 28,) * 3 == Plain().upload(messages)
    assert channel.upload(messages.keep(torch.zeros(3, dtype=torch.bool))) == ()
    assert (channel.shows, Plain().shows) == ("sum", "messages")


def test_what_is_said_once_counts_in_the_first_view() -> None:
    parts, once = {Part.VALUES: torch.zeros(5)}, {Part.MASK: torch.zeros(9, dtype=torch.uint8)}
    view = View(torch.zeros(100), parts, once)
    sizes = [IdealSum().download(view, first=first) for first in (True, False)]
    assert sizes == [24 + 12 + 20 + 12 + 9, 24 + 12 + 20]
    assert sizes[0] == len(wire.pack(wire.Kind.VIEW, 1, view.told(first=True)))
