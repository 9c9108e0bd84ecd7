import torch

from tacit.core import Key


def test_equal_names_give_equal_numbers() -> None:
    one, other = (Key.from_seed(3).child("round", 5).child("client", 7) for _ in range(2))
    assert torch.equal(torch.rand(4, generator=one.torch()), torch.rand(4, generator=other.torch()))
    assert one.numpy().random() == other.numpy().random()


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
