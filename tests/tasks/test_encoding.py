import numpy as np

from tacit.tasks import encoding
from tacit.tasks.encoding import encode


def test_ranges_and_values_come_from_the_training_rows(monkeypatch):
    monkeypatch.setattr(encoding, "RARE", 2)
    table = {"age": ["20", "60", "?", "100"], "kind": ["a", "b", "a", "b"], "code": np.array([1, 1, 2, 97])}
    encoded = encode(table, ["age"], ["kind", "code"], np.array([0, 1, 2]))
    assert encoded.names == ("age", "age missing", "kind=a", "code=1")  # b and 2 are rare in training
    assert encoded.x[:, 0].tolist() == [0, 1, 0, 1]  # 100 is beyond what training saw
    assert encoded.x[:, 1].tolist() == [0, 0, 1, 0]
    assert encoded.x[:, 2].tolist() == [1, 0, 1, 0]
    assert encoded.x[:, 3].tolist() == [1, 1, 0, 0]


def test_a_category_without_a_choice_is_no_feature(monkeypatch):
    monkeypatch.setattr(encoding, "RARE", 1)
    encoded = encode({"x": ["1", "2"], "same": ["a", "a"]}, ["x"], ["same"], np.array([0, 1]))
    assert encoded.names == ("x",)
