"""What the halves of a channel say of themselves is what they do; nobody's reply counts without a signature."""

import sys
from pathlib import Path

import pytest

from federation.consortium import Consortium
from tacit.errors import ProtocolError
from tacit.federation.channels import enclave, interface, plain, secure_sum
from tacit.federation.messages import TRAIN, Answer, Refusal, Reply, pack, read_reply, sign_reply
from tacit.protocols import crypto

MODULES = (enclave, plain, secure_sum)  # which register their halves


def test_metrics_are_summed_by_all_halves_of_a_channel_that_says_so() -> None:
    """By default metrics are sent in the clear: a channel that promises a sum has to replace this at both ends."""
    registered = [halves for halves in interface._registered.values() if sys.modules[halves.__module__] in MODULES]
    assert len(registered) == len(MODULES)
    for halves in registered:
        module = sys.modules[halves.__module__]
        site, server = (
            getattr(module, method.__annotations__["return"].strip('"'))
            for method in (halves.at_site, halves.at_server)
        )
        own = {"reply_metrics" in vars(site), "metrics" in vars(server)}
        assert own == {halves.sums_metrics}, halves.__name__


@pytest.mark.parametrize("reply", [Answer(0, bytes(32), b"sum"), Refusal(0, bytes(32), "policy", "No.")], ids=type)
def test_a_reply_without_the_site_s_signature_is_refused(tmp_path: Path, reply: Reply) -> None:
    consortium = Consortium.at(tmp_path, 2)
    own, other = (consortium.identity(name) for name in consortium.names)
    keys = {0: crypto.public_identity(own)}
    genuine = sign_reply(TRAIN, reply, own)
    assert read_reply(pack(genuine), TRAIN, bytes(32), 0, keys) == genuine
    for forged in (reply, sign_reply(TRAIN, reply, other), sign_reply("evaluate", reply, own)):
        with pytest.raises(ProtocolError, match="signature does not match"):
            read_reply(pack(forged), TRAIN, bytes(32), 0, keys)
