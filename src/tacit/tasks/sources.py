"""The data sets of tasks: checksums, public sources, licences.

Adding a data set means adding a table to `sources.toml`. Sizes and checksums are those of the decompressed content.
"""

import tomllib
from pathlib import Path
from typing import Any

from tacit.tasks.datasets import DataSet, File


def _data_set(name: str, files: list[dict[str, Any]], optional: tuple[str, ...] = (), **about: str) -> DataSet:
    """A data set from its table in the file; its folder has the same name."""
    return DataSet(
        name=name,
        files=tuple(_file(name, **file) for file in files),
        optional=tuple(f"{name}/{file}" for file in optional),
        **about,
    )


def _file(folder: str, name: str, sha256: str, size: int, urls: tuple[str, ...] = (), member: str = "") -> File:
    return File(f"{folder}/{name}", sha256, size, tuple(urls), member)


DATA_SETS: dict[str, DataSet] = {
    name: _data_set(name, **table)
    for name, table in tomllib.loads(Path(__file__).with_name("sources.toml").read_text("utf-8")).items()
}

MNIST = DATA_SETS["mnist"]
QMNIST_WRITERS = DATA_SETS["qmnist-writers"]
FASHION_MNIST = DATA_SETS["fashion-mnist"]
CIFAR_10 = DATA_SETS["cifar-10"]
CMS_IPPS = DATA_SETS["cms-ipps-fy2011"]
ZIP_LATLON = DATA_SETS["us-zip-latlon"]
DIABETES = DATA_SETS["diabetes-130"]
COVID_MX = DATA_SETS["covid-mx"]
IST = DATA_SETS["ist"]
GUSTO = DATA_SETS["gusto"]
SUPPORT2 = DATA_SETS["support2"]
