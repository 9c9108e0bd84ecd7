import torch

from tacit.core import Broadcast, DenseRows, Messages, Plain
from tacit.core.server_half import download_size
from tacit.pieces.channels import IdealSum
from tacit.wire import frames
from tacit.wire.frames import Part


def test_it_counts_the_payload_and_reveals_only_the_sum() -> None:
    channel = IdealSum()
    messages = Messages(torch.arange(3), DenseRows(torch.randn(3, 7)))
    assert channel.message_format.sizes(messages) == (24 + 12 + 28,) * 3 == Plain().message_format.sizes(messages)
    assert channel.message_format.sizes(messages.keep(torch.zeros(3, dtype=torch.bool))) == ()
    assert (channel.messages_seen_by, Plain().messages_seen_by) == ("nobody", "server")


def test_parts_of_the_first_broadcast_count_once() -> None:
    parts, first_parts = {Part.VALUES: torch.zeros(5)}, {Part.MASK: torch.zeros(9, dtype=torch.uint8)}
    sent = Broadcast(parts, first_parts)
    sizes = [download_size(IdealSum(), sent, first=first) for first in (True, False)]
    assert sizes == [24 + 12 + 20 + 12 + 9, 24 + 12 + 20]
    assert sizes[0] == len(frames.pack(frames.FrameKind.VIEW, 1, sent.client_parts(first=True)))
