"""What a mask means for a chain: every layer's share, the seams between them, and where gradients are wanted."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from tacit.engine.learners.kernels.chain import TRAINED, Link
from tacit.engine.learners.kernels.shape import Slot
from tacit.engine.learners.kernels.shares import Seam, Share

ELEMENTWISE = (nn.ReLU, nn.Sigmoid, nn.Tanh)


@dataclass(frozen=True, eq=False)
class Plan:
    """A mask, layer by layer.

    Attributes:
        mask: whose plan it is.
        shares: of the layers with weights, by their place in the chain.
        still: how many layers lie before the first in which anything moves.
        wanted: for layers above that one, the inputs (or channels) at which anything below needs the gradient;
            a layer that is not listed is asked for all.
    """

    mask: Tensor
    shares: dict[int, Share]
    still: int
    wanted: dict[int, Tensor]

    @classmethod
    def of(cls, mask: Tensor, links: tuple[Link, ...], slots: dict[int, tuple[Slot, ...]]) -> "Plan":
        """The plan of a mask; `slots` says where the weights of each layer are."""
        shares = {i: Share.of(mask, slots[i], len(_weight(links[i]))) for i in slots}
        still = next((i for i in sorted(shares) if not shares[i].empty), len(links))
        above = _next(links, still)
        wanted = {above: shares[still].outputs} if above and _feature_wise(links, still, above) else {}
        return cls(mask, _sewn(links, shares), still, wanted)


def _sewn(links: tuple[Link, ...], shares: dict[int, Share]) -> dict[int, Share]:
    """The shares with a seam above every fully connected layer that is corrected in a block, if the next allows it."""
    sewn = dict(shares)
    for low, high in zip(sorted(shares), sorted(shares)[1:], strict=False):
        linear = all(isinstance(links[i].module, nn.Linear) for i in (low, high))
        sliced = shares[low].blockwise and (shares[high].blockwise or shares[high].dense)
        if linear and sliced and all(isinstance(link.module, ELEMENTWISE) for link in links[low + 1 : high]):
            seam = Seam.of(shares[low].outputs, shares[high].inputs, shares[low].shape[0])
            sewn[low], sewn[high] = replace(sewn[low], above=seam), replace(sewn[high], below=seam)
    return sewn


def _next(links: tuple[Link, ...], place: int) -> int | None:
    """The next layer with weights above `place`."""
    return next((i for i in range(place + 1, len(links)) if isinstance(links[i].module, TRAINED)), None)


def _feature_wise(links: tuple[Link, ...], low: int, high: int) -> bool:
    """Whether an output of one layer is an input of the other, with nothing but its own past mixed in."""
    alike = type(links[low].module) is type(links[high].module)
    return alike and not any(isinstance(link.module, nn.Flatten) for link in links[low + 1 : high])


def _weight(link: Link) -> Tensor:
    weight = link.module.weight
    assert isinstance(weight, Tensor)
    return weight
