import torch

from tacit.core import DenseRows, Key, Messages, Plain, Round, View
from tacit.pieces.channels import IdealSum
from tacit.wire import frames
from tacit.wire.frames import Part

NOW = Round(0, 10, 3.0, 3, Key.from_seed(0), Key.from_seed(1))


def test_it_counts_the_payload_and_reveals_only_the_sum() -> None:
    channel = IdealSum()
    messages = Messages(torch.arange(3), DenseRows(torch.randn(3, 7)))
    assert channel.upload_sizes(messages, NOW) == (24 + 12 + 28,) * 3 == Plain().upload_sizes(messages, NOW)
    assert channel.upload_sizes(messages.keep(torch.zeros(3, dtype=torch.bool)), NOW) == ()
    assert (channel.server_sees, Plain().server_sees) == ("sum", "messages")


def test_parts_of_the_first_broadcast_count_once() -> None:
    parts, first_parts = {Part.VALUES: torch.zeros(5)}, {Part.MASK: torch.zeros(9, dtype=torch.uint8)}
    view = View(torch.zeros(100), parts, first_parts)
    sizes = [IdealSum().download_size(view, NOW, first=first) for first in (True, False)]
    assert sizes == [24 + 12 + 20 + 12 + 9, 24 + 12 + 20]
    assert sizes[0] == len(frames.pack(frames.FrameKind.VIEW, 1, view.sent(first=True)))
