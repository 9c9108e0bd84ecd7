import torch

from tacit.core import Broadcast, DenseRows, Key, Messages, Plain, SimulatedRound
from tacit.core.server_half import download_size, upload_sizes
from tacit.pieces.channels import IdealSum
from tacit.wire import frames
from tacit.wire.frames import Part

NOW = SimulatedRound.of(0, 10, 3.0, 3, Key.from_seed(0), Key.from_seed(1))


def test_it_counts_the_payload_and_reveals_only_the_sum() -> None:
    channel = IdealSum()
    messages = Messages(torch.arange(3), DenseRows(torch.randn(3, 7)))
    assert upload_sizes(channel, messages, NOW) == (24 + 12 + 28,) * 3 == upload_sizes(Plain(), messages, NOW)
    assert upload_sizes(channel, messages.keep(torch.zeros(3, dtype=torch.bool)), NOW) == ()
    assert (channel.messages_seen_by, Plain().messages_seen_by) == ("nobody", "server")


def test_parts_of_the_first_broadcast_count_once() -> None:
    parts, first_parts = {Part.VALUES: torch.zeros(5)}, {Part.MASK: torch.zeros(9, dtype=torch.uint8)}
    sent = Broadcast(parts, first_parts)
    sizes = [download_size(IdealSum(), sent, NOW, first=first) for first in (True, False)]
    assert sizes == [24 + 12 + 20 + 12 + 9, 24 + 12 + 20]
    assert sizes[0] == len(frames.pack(frames.FrameKind.VIEW, 1, sent.sent(first=True)))
