import pytest

from tacit.tasks.hospital import hospital_charges


@pytest.mark.parametrize(("by", "train", "rows"), [("hospital", 2206, 11_915), ("zip", 2064, 11_915)])
def test_populations(data_folder, by, train, rows):
    task = hospital_charges(by=by)
    people = task.population
    assert len(people) == train  # 70 % of 3,151 hospitals, or of 2,948 ZIP codes
    assert task.test is not None
    assert len(people.x) + len(task.test[0]) == rows  # 3023 + 2989 + 2953 + 2950
    assert task.owners is not None
    everybody = {"hospital": 3151, "zip": 2948}[by]  # the paper has 2,947 clients
    assert len(people) + len(task.owners.unique()) == everybody
    assert people.x[:, 0].unique().tolist() == [0, 1, 2, 3]
    assert -1.8 < float(people.x[:, 1].min()) < float(people.x[:, 1].max()) < -0.6
    assert 0.18 < float(people.x[:, 2].min()) < float(people.x[:, 2].max()) < 0.72
    assert 0.2 < float(people.y.min()) < float(people.y.mean()) < 1
