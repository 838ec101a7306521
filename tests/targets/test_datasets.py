"""Data sets: what is read is what was published, and what is damaged, missing or of no use is refused by name."""

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers import needs_files
from pgps.targets import Dataset, datasets, fill_missing, load_dataset, load_table, partition, split, standardise

SONAR = "0.1,0.2,R\n0.3,0.4,M\n0.5,0.6,M\n"
GLASS = "1,1.5,13.6,1\n2,1.6,13.8,7\n3,1.4,13.7,7\n"
HEART = "63.0,1.0,0\n67.0,?,2\n41.0,2.0,1\n"
PINES = '"","data_x","data_y"\n"1",0.25,0.5\n"2",1,0\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data directory and an empty cache next to it; OpenML is out of reach."""
    monkeypatch.setenv("PGPS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PGPS_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    offline(monkeypatch)
    return tmp_path / "data"


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(**_: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)


def shrink(
    monkeypatch: pytest.MonkeyPatch, name: str, num_columns: int, counts: dict[int, int], *contents: bytes
) -> None:
    """Let a set be a small one, whose files have these contents."""
    source = datasets._SOURCES[name]
    hashes = [hashlib.sha256(content).hexdigest() for content in contents]
    files = dict(zip(source.files, hashes, strict=True)) if contents else source.files
    monkeypatch.setitem(datasets._SOURCES, name, replace(source, num_columns=num_columns, counts=counts, files=files))


def write(folder: Path, name: str, *contents: bytes) -> list[Path]:
    paths = [folder / file for file in datasets._SOURCES[name].files]
    for path, content in zip(paths, contents, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return paths


def publish(monkeypatch: pytest.MonkeyPatch, features: Any, target: list[str], **categories: list[str]) -> list[dict]:
    """Let OpenML have a set; returns the calls that it gets."""
    calls = []

    def fetch(**arguments: Any) -> SimpleNamespace:
        calls.append(arguments)
        names = [*categories, *(f"v{j}" for j in range(len(features[0]) - len(categories)))]
        data = np.array(features, float)
        return SimpleNamespace(data=data, target=np.array(target, object), feature_names=names, categories=categories)

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    return calls


@needs_files
@pytest.mark.parametrize(
    ("name", "shape", "counts"),
    [
        ("SONAR", (208, 60), [111, 97]),
        ("WINE-WHITE", (4898, 11), [20, 163, 1457, 2198, 880, 175, 5]),
        ("WINE-RED", (1599, 11), [10, 53, 681, 638, 199, 18]),
        ("AUSTRALIAN", (690, 14), [383, 307]),
        ("HEART", (297, 13), [160, 137]),
        ("GLASS", (214, 9), [70, 76, 17, 13, 9, 29]),
        ("COVERTYPE", (20_000, 54), [7308, 9760, 1170, 105, 346, 592, 719]),
        ("pines", (126, 2), [126]),
    ],
)
def test_the_published_files(name: str, shape: tuple[int, int], counts: list[int]):
    data = load_dataset(name)
    assert (data.name, data.features.shape, data.features.dtype) == (name.lower(), shape, np.float64)
    assert np.bincount(data.labels).tolist() == counts
    assert (data.num_classes, data.image_shape, data.num_train) == (len(counts), None, None)
    assert np.all(np.isfinite(data.features))


@needs_files
def test_mnist():
    data = load_dataset("MNIST")
    assert (data.features.shape, data.num_classes, data.image_shape) == ((70_000, 784), 10, (28, 28))
    train, test = partition(data, 3, 0.2)
    assert (len(train.labels), len(test.labels), train.num_train) == (60_000, 10_000, None)
    # The means and the first labels of the two parts, as their publishers have them.
    assert train.features.mean() == pytest.approx(33.3184, abs=5e-5)
    assert test.features.mean() == pytest.approx(33.7912, abs=5e-5)
    assert (train.labels[:5].tolist(), test.labels[:5].tolist()) == ([5, 0, 4, 1, 9], [7, 2, 1, 0, 4])


@needs_files
def test_first_rows():
    assert load_table("sonar")[0, [0, 1, -1]].tolist() == [0.02, 0.0371, 1]
    assert load_table("glass")[0].tolist() == [1.52101, 13.64, 4.49, 1.10, 71.78, 0.06, 8.75, 0, 0, 1]
    assert load_table("wine-red")[0, [0, -1]].tolist() == [7.4, 5]
    assert load_table("pines")[0].tolist() == [0.3006125, 0.89297642, 0]
    heart = load_table("heart")
    assert heart.shape == (303, 14)
    assert np.isnan(heart).any(axis=1).sum() == 6
    assert np.bincount(heart[:, -1].astype(int)).tolist() == [164, 55, 36, 35, 13]


@pytest.mark.parametrize(
    ("name", "shape", "counts", "image_shape"),
    [
        ("digits", (1797, 64), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180], (8, 8)),
        ("breast-cancer", (569, 30), [212, 357], None),
        ("wine", (178, 13), [59, 71, 48], None),
    ],
)
@pytest.mark.usefixtures("folder")
def test_sets_of_scikit_learn_need_no_files(name: str, shape: tuple, counts: list[int], image_shape: tuple | None):
    data = load_dataset(name)
    assert (data.features.shape, data.features.dtype) == (shape, np.float64)
    assert np.bincount(data.labels).tolist() == counts
    assert data.image_shape == image_shape


@pytest.mark.parametrize(
    ("name", "content", "counts", "features", "labels"),
    [
        ("sonar", SONAR, {0: 2, 1: 1}, [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], [1, 0, 0]),
        ("glass", GLASS, {1: 1, 7: 2}, [[1.5, 13.6], [1.6, 13.8], [1.4, 13.7]], [0, 1, 1]),
        ("heart", HEART, {0: 1, 1: 1, 2: 1}, [[63, 1], [41, 2]], [0, 1]),
        ("pines", PINES, {0: 2}, [[0.25, 0.5], [1, 0]], [0, 0]),
    ],
)
def test_formats(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, counts: dict, features: list, labels: list
):
    shrink(monkeypatch, name, 2, counts, content.encode())
    write(folder, name, content.encode())
    data = load_dataset(name)
    assert (data.features.tolist(), data.labels.tolist()) == (features, labels)


def test_idx_files(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def idx(values: list, *shape: int) -> bytes:
        header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">i4").tobytes()
        return gzip.compress(header + np.array(values, np.uint8).tobytes())

    contents = idx([0, 255, 1, 2], 2, 1, 2), idx([9, 4], 2), idx([7, 8], 1, 1, 2), idx([4], 1)
    shrink(monkeypatch, "mnist", 2, {4: 2, 9: 1}, *contents)
    write(folder, "mnist", *contents)
    assert load_table("mnist").tolist() == [[0, 255, 9], [1, 2, 4], [7, 8, 4]]


@pytest.mark.parametrize("damage", [lambda content: content[:-3], lambda content: content.replace(b"6", b"8")])
def test_a_damaged_file_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, damage: Any):
    shrink(monkeypatch, "glass", 2, {1: 1, 7: 2}, GLASS.encode())
    (path,) = write(folder, "glass", damage(GLASS.encode()))
    with pytest.raises(ValueError, match=f"^{path} must have sha256 .*, got .* altered .*; fetch it anew$"):
        load_dataset("glass")


@pytest.mark.parametrize(
    ("num_columns", "counts", "message"),
    [
        (3, {1: 1, 7: 2}, r"glass must have shape \(3, 4\) with its label, got \(3, 3\) from"),
        (2, {1: 2, 7: 1}, r"glass must have \{1: 2, 7: 1\} rows by label, got \{1.0: 1, 7.0: 2\} from"),
    ],
)
def test_another_table_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, num_columns: int, counts: dict, message: str
):
    shrink(monkeypatch, "glass", num_columns, counts, GLASS.encode())
    write(folder, "glass", GLASS.encode())
    with pytest.raises(ValueError, match=message):
        load_dataset("glass")


def test_a_missing_file_is_named_with_its_places(folder: Path):
    cache = folder.parent / "cache"
    places = f"uci/glass.data was not found in {folder} or {cache}"
    with pytest.raises(FileNotFoundError, match=f"^{places}, and OpenML's data set 41 .*no network.*PGPS_DATA_DIR"):
        load_dataset("glass")
    with pytest.raises(
        FileNotFoundError, match=f"^pines.csv was not found in {folder} or {cache}, and OpenML does not"
    ):
        load_dataset("pines")


def test_one_missing_image_file_is_enough(folder: Path):
    paths = write(folder, "mnist", b"", b"", b"", b"")
    paths[-1].unlink()
    with pytest.raises(FileNotFoundError, match="t10k-labels-idx1-ubyte.gz was not found"):
        load_dataset("mnist")


def test_files_in_the_cache_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PGPS_DATA_DIR")
    shrink(monkeypatch, "pines", 2, {0: 2}, PINES.encode())
    write(folder.parent / "cache", "pines", PINES.encode())
    assert load_dataset("pines").features.shape == (2, 2)


def test_the_cache_is_in_the_home_directory(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PGPS_CACHE_DIR")
    monkeypatch.setattr(Path, "home", lambda: folder)
    with pytest.raises(FileNotFoundError, match=str(folder / ".cache" / "pgps")):
        load_dataset("pines")


@pytest.mark.usefixtures("folder")
def test_openml_is_asked_once(monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch, "glass", 2, {1: 1, 7: 2})
    calls = publish(
        monkeypatch, [[1.5, 13.6], [1.6, 13.8], [1.4, 13.7]], ["'build wind float'", "headlamps", "headlamps"]
    )
    first = load_dataset("glass")
    assert [call["data_id"] for call in calls] == [41]
    offline(monkeypatch)
    second = load_dataset("glass")
    for data in (first, second):
        assert data.features.tolist() == [[1.5, 13.6], [1.6, 13.8], [1.4, 13.7]]
        assert data.labels.tolist() == [0, 1, 1]


@pytest.mark.usefixtures("folder")
def test_openml_codes_become_values(monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch, "heart", 2, {0: 1, 1: 1, 2: 1})
    publish(monkeypatch, [[1, 63], [np.nan, 67], [0, 41]], ["0", "2", "1"], cp=["4", "1"])
    np.testing.assert_array_equal(load_table("heart"), [[1, 63, 0], [np.nan, 67, 2], [4, 41, 1]])


@pytest.mark.usefixtures("folder")
def test_openml_classes_that_are_numbered_anew(monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch, "wine-white", 1, {3: 1, 9: 2})
    publish(monkeypatch, [[0.1], [0.2], [0.3]], ["2", "1", "2"])
    assert load_table("wine-white")[:, -1].tolist() == [9, 3, 9]


@pytest.mark.usefixtures("folder")
def test_openml_rows_of_covertype(monkeypatch: pytest.MonkeyPatch):
    source = datasets._SOURCES["covertype"]
    assert source.openml_rows is not None
    assert source.openml_rows()[:3].tolist() == np.random.RandomState(0).permutation(581_012)[:3].tolist()
    small = replace(source, num_columns=1, counts={1: 1, 2: 1}, openml_rows=lambda: np.array([2, 0]))
    monkeypatch.setitem(datasets._SOURCES, "covertype", small)
    publish(monkeypatch, [[0.1], [0.2], [0.3]], ["1", "2", "2"])
    assert load_table("covertype").tolist() == [[0.3, 2], [0.1, 1]]


@pytest.mark.parametrize(
    ("features", "target", "error", "message"),
    [
        ([[1.5, 13.6]], ["headlamps"], ValueError, r"got \(1, 3\) from OpenML's data set 41"),
        ([[1.5, 13.6]] * 3, ["headlamps"] * 3, ValueError, r"rows by label, got \{7.0: 3\} from OpenML"),
        ([[1.5, 13.6]] * 3, ["vase"] * 3, FileNotFoundError, r"data set 41 could not be had \(KeyError: 'vase'\)"),
    ],
)
def test_another_set_at_openml_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, features: list, target: list, error: type[Exception], message: str
):
    shrink(monkeypatch, "glass", 2, {1: 1, 7: 2})
    publish(monkeypatch, features, target)
    with pytest.raises(error, match=message):
        load_dataset("glass")
    assert not (folder.parent / "cache").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"\x93NUMPY"])
def test_a_damaged_cache_is_named(folder: Path, content: bytes):
    path = folder.parent / "cache" / "openml" / "glass.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path} must hold a table, got a damaged file .*; delete it$"):
        load_dataset("glass")


def test_the_cache_is_never_unpickled(folder: Path):
    path = folder.parent / "cache" / "openml" / "glass.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, table=np.array([{"a": 1}], object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_dataset("glass")


def test_a_cache_that_cannot_be_written_does_no_harm(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder.parent / "cache").write_text("a file where the directory should be")
    shrink(monkeypatch, "wine-red", 1, {3: 1, 4: 1})
    publish(monkeypatch, [[0.1], [0.2]], ["3", "4"])
    assert load_dataset("wine-red").labels.tolist() == [0, 1]


def test_scikit_learn_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(datasets.importlib, "import_module", refuse)
    with pytest.raises(ModuleNotFoundError, match=r"digits needs scikit-learn.*pip install 'pgps\[data\]'"):
        load_dataset("digits")
    with pytest.raises(FileNotFoundError, match=r"glass.data was not found.*pip install 'pgps\[data\]'"):
        load_dataset("glass")


def test_misuse(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="name must be one of sonar, .*wine, got 'iris'; choose"):
        load_dataset("iris")
    monkeypatch.setenv("PGPS_DATA_DIR", str(folder / "nowhere"))
    with pytest.raises(ValueError, match="PGPS_DATA_DIR must be a directory, got .*nowhere'; correct or unset it"):
        load_dataset("glass")


def some_rows(num: int = 40) -> Dataset:
    """Rows of two classes, each of which tells its number; the second column is constant."""
    rows = np.arange(num, dtype=float)
    return Dataset("rows", np.column_stack([rows, np.full(num, 0.1), rows**2]), np.arange(num) % 2, 2)


def test_partition():
    data = some_rows()
    train, test = partition(data, 0, 0.25)
    assert (len(train.labels), len(test.labels)) == (30, 10)
    rows = np.concatenate([train.features[:, 0], test.features[:, 0]])
    assert sorted(rows) == list(range(40))
    assert np.all(np.concatenate([train.labels, test.labels]) == rows % 2)
    np.testing.assert_array_equal(partition(data, 0, 0.25)[1].features, test.features)
    assert not np.array_equal(partition(data, 1, 0.25)[1].features, test.features)


def test_the_publishers_parts_come_first():
    train, test = partition(replace(some_rows(), num_train=25), 0, 0.1)
    assert train.features[:, 0].tolist() == list(range(25))
    assert test.features[:, 0].tolist() == list(range(25, 40))


def test_split_knows_nothing_of_the_test_part():
    data = some_rows()
    raw_train, raw_test = partition(data, 2, 0.5)
    train, test = split(data, 2, 0.5)
    mean, scale = raw_train.features.mean(axis=0), raw_train.features.std(axis=0)
    for j in (0, 2):
        np.testing.assert_allclose(train.features[:, j], (raw_train.features[:, j] - mean[j]) / scale[j])
        np.testing.assert_allclose(test.features[:, j], (raw_test.features[:, j] - mean[j]) / scale[j])
    assert np.all(train.features[:, 1] == 0)
    assert np.all(test.features[:, 1] == 0)
    np.testing.assert_array_equal(test.labels, raw_test.labels)


def test_a_column_that_is_constant_in_training_only():
    train, test = standardise(np.full((7, 1), 0.1), np.array([[0.1], [3.1]]))
    assert train.tolist() == [[0.0]] * 7
    np.testing.assert_allclose(test, [[0.0], [3.0]])


def test_a_class_of_the_test_part_only_keeps_its_label():
    data = replace(some_rows(), labels=np.array([2] + 20 * [0] + 19 * [1]), num_classes=3)
    parts = [split(data, seed) for seed in range(20)]
    unseen = [(train, test) for train, test in parts if 2 not in train.labels]
    assert 0 < len(unseen) < 20
    assert all(2 in test.labels and train.num_classes == test.num_classes == 3 for train, test in unseen)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_located(value: float):
    data = some_rows()
    data.features[7, 2] = value
    with pytest.raises(ValueError, match=f"features must be finite, got {value} in row 7, column 2; drop"):
        standardise(data.features)


def test_what_is_infinite_cannot_be_filled_in():
    data = some_rows()
    data.features[7, 2] = np.inf
    with pytest.raises(ValueError, match="features must be finite, got inf in row .*, column 2; drop"):
        split(data, 0)


def test_missing_values_become_the_medians_of_the_training_part():
    train = np.array([[1.0, np.nan], [2.0, 5.0], [9.0, np.nan], [np.nan, 7.0]])
    test = np.array([[np.nan, np.nan], [100.0, 100.0]])
    filled = fill_missing(train, test)
    np.testing.assert_array_equal(filled[0], [[1.0, 6.0], [2.0, 5.0], [9.0, 6.0], [2.0, 7.0]])
    np.testing.assert_array_equal(filled[1], [[2.0, 6.0], [100.0, 100.0]])
    assert np.isnan(train).sum() == 3


def test_a_column_that_is_missing_altogether():
    train = np.array([[1.0, np.nan, 0.0], [2.0, np.nan, 1.0]])
    with pytest.raises(
        ValueError, match="features must be known in some training row, got nan alone in column 1; drop"
    ):
        fill_missing(train, np.ones((1, 3)))


def test_split_fills_in_what_is_missing():
    data = some_rows()
    rows = partition(data, 4)[0].features[:, 0].astype(int)
    data.features[rows[:3], 2] = np.nan
    data.features[np.setdiff1d(np.arange(40), rows)[0], 2] = np.nan
    train, test = split(data, 4)
    known = data.features[rows[3:], 2]
    column = np.concatenate([np.full(3, np.median(known)), known])
    np.testing.assert_allclose(train.features[:, 2], (column - column.mean()) / column.std())
    assert np.sum(np.isclose(test.features[:, 2], (np.median(known) - column.mean()) / column.std())) >= 1
    assert np.all(np.isfinite(test.features))


def test_rows_with_missing_values_may_be_kept(folder: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch, "heart", 2, {0: 1, 1: 1, 2: 1}, HEART.encode())
    write(folder, "heart", HEART.encode())
    data = load_dataset("heart", drop_missing=False)
    np.testing.assert_array_equal(data.features, [[63, 1], [67, np.nan], [41, 2]])
    assert (data.labels.tolist(), data.num_classes) == ([0, 1, 1], 2)


def test_splits_of_no_use():
    data = some_rows()
    with pytest.raises(ValueError, match=r"must have two classes or more, got \[0\] in 20 rows; use another seed"):
        split(replace(data, labels=np.zeros(40, int)), 0)
    with pytest.raises(ValueError, match=r"test_fraction must lie in \(0, 1\), got 1.0"):
        split(data, 0, 1.0)
    with pytest.raises(ValueError, match="test_fraction must leave rows in both parts, got 0.01 of 40 rows"):
        split(data, 0, 0.01)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        split(data, -1)
