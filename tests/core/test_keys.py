import torch

from tacit.core import Key


def test_equal_names_give_equal_numbers() -> None:
    one, other = (Key.from_seed(3).child("round", 5).child("client", 7) for _ in range(2))
    public = [torch.rand(4, generator=key.public_generator()) for key in (one, other)]
    assert torch.equal(*public)
    assert one.fast_generator().random() == other.fast_generator().random()
    assert one.stream().bytes(100) == other.stream().bytes(100)


def test_different_names_give_different_keys() -> None:
    root = Key.from_seed(3)
    keys = {
        root.value,
        Key.from_seed(4).value,
        Key.from_seed(3, "secret").value,
        root.child("round", 1).value,
        root.child("round", 11).value,
        root.child("round1", 1).value,
        root.child("round").child("round").value,
    }
    assert len(keys) == 7


def test_keys_from_entropy_differ() -> None:
    assert Key.from_entropy() != Key.from_entropy()


def test_a_printed_key_is_not_revealed() -> None:
    key = Key.from_seed(0)
    assert key.value.hex() not in repr(key)
    assert len(repr(key)) < 20
