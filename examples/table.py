"""From a CSV file to a prediction, with a guarantee for every patient.

python examples/table.py
"""

import tempfile
from pathlib import Path

import tacit

HERE = Path(__file__).parent


def main() -> None:
    """Train under a budget, print the guarantee, and predict two new patients from the run's directory."""
    with tempfile.TemporaryDirectory() as folder:
        task = tacit.Task.from_table(
            HERE / "patients.csv",
            client="hospital",
            target="readmitted",
            classes=["0", "1"],
            encoding=HERE / "ranges.toml",  # known beforehand, so that no patient's value decides them
            model="logistic",
        )
        method = tacit.methods.dp_fedsgd(rounds=40, epsilon=3, delta=1e-4)
        run = tacit.train(method, task, workers=1, out=Path(folder, "run"))
        print({name: round(value, 3) for name, value in run.metrics.items()})
        print(run.privacy)
        new = {"age": [81, 30], "bmi": [31.0, 22.0], "smoker": ["yes", "no"]}
        print(run.predict(new))


if __name__ == "__main__":
    main()
