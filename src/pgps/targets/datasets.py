"""Data sets of the paper's experiments and of the posterior benchmarks.

A set is looked for in the directory `PGPS_DATA_DIR`, then in the cache (`PGPS_CACHE_DIR`, else `~/.cache/pgps`), both
with the layout `uci/`, `mnist/`, `pines.csv`; its files are checked by their sha256. Else it is fetched from OpenML and
kept in the cache. Three sets come with scikit-learn itself. Nothing is ever unpickled.
"""

import contextlib
import gzip
import hashlib
import importlib
import io
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from pgps import _checks
from pgps.storage import cache_folder


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled rows.

    Args:
        name: Which set it is.
        features: The rows.
        labels: Their classes.
        num_classes: The number of classes of the whole set; a part of it may lack some.
        image_shape: The shape of a row, where it is an image.
        num_train: How many rows, the first ones, are for training, where the set's publishers say so.
    """

    name: str
    features: Float[np.ndarray, "n d"]
    labels: Int[np.ndarray, " n"]
    num_classes: int
    image_shape: tuple[int, int] | None = None
    num_train: int | None = None

    def part(self, rows: np.ndarray | slice) -> "Dataset":
        """Some of the rows, of which the publishers say nothing."""
        return replace(self, features=self.features[rows], labels=self.labels[rows], num_train=None)


Reader = Callable[..., np.ndarray]


def _numbers(
    delimiter: str | None = ",", skip: int = 0, first: int = 0, words: Mapping[str, str] | None = None
) -> Reader:
    """A reader of text in columns, from column `first` on, with words replaced by numbers."""

    def read(content: bytes) -> np.ndarray:
        text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode()
        for word, number in (words or {}).items():
            text = text.replace(word, number)
        return np.loadtxt(io.StringIO(text), delimiter=delimiter, skiprows=skip, ndmin=2)[:, first:]

    return read


def _points(content: bytes) -> np.ndarray:
    """Locations, as the only class, 0."""
    points = _numbers(skip=1, first=1, words={'"': ""})(content)
    return np.column_stack([points, np.zeros(len(points))])


def _images(*contents: bytes) -> np.ndarray:
    """Pairs of idx files, images and labels, one pair after the other."""
    arrays = []
    for packed in contents:
        content = gzip.decompress(packed)
        shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
        arrays.append(np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape[0], -1))
    return np.vstack([np.hstack(pair) for pair in zip(arrays[::2], arrays[1::2], strict=True)]).astype(float)


@dataclass(frozen=True)
class _Source:
    """Where a table comes from and what it has to look like; `counts` are rows by the label's value."""

    num_columns: int
    counts: Mapping[int, int]
    files: Mapping[str, str]
    read: Reader
    openml: int | None = None
    openml_labels: Mapping[str, int] | None = None
    openml_rows: Callable[[], np.ndarray] | None = None
    binary: bool = False
    image_shape: tuple[int, int] | None = None
    num_train: int | None = None


_SOURCES = {
    "sonar": _Source(
        60,
        {0: 111, 1: 97},
        {"uci/sonar.all-data": "e90434cdbf00fcf93ffa911fe447ae25606979658e60f1d32e155c3b5240234d"},
        _numbers(words={"M": "0", "R": "1"}),
        openml=40,
        openml_labels={"Mine": 0, "Rock": 1},
    ),
    "wine-white": _Source(
        11,
        {3: 20, 4: 163, 5: 1457, 6: 2198, 7: 880, 8: 175, 9: 5},
        {"uci/winequality-white.csv": "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836"},
        _numbers(";", skip=1),
        openml=40498,
    ),
    "wine-red": _Source(
        11,
        {3: 10, 4: 53, 5: 681, 6: 638, 7: 199, 8: 18},
        {"uci/winequality-red.csv": "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e"},
        _numbers(";", skip=1),
        openml=40691,
    ),
    "australian": _Source(
        14,
        {0: 383, 1: 307},
        {"uci/australian.dat": "3abe5af151afa50b999a9ba21cbc884e80d80a4050b716cf88b34a2e6ecb731c"},
        _numbers(None),
        openml=40981,
    ),
    "heart": _Source(
        13,
        {0: 164, 1: 55, 2: 36, 3: 35, 4: 13},
        {"uci/processed.cleveland.data": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"},
        _numbers(words={"?": "nan"}),
        openml=194,
        binary=True,
    ),
    "glass": _Source(
        9,
        {1: 70, 2: 76, 3: 17, 5: 13, 6: 9, 7: 29},
        {"uci/glass.data": "dd67373f4baf2807345df02cbfef2093d342e61ad0d82a4fb79af43ef8ce449d"},
        _numbers(first=1),
        openml=41,
        openml_labels={
            "build wind float": 1,
            "build wind non-float": 2,
            "vehic wind float": 3,
            "containers": 5,
            "tableware": 6,
            "headlamps": 7,
        },
    ),
    "covertype": _Source(
        54,
        {1: 7308, 2: 9760, 3: 1170, 4: 105, 5: 346, 6: 592, 7: 719},
        {"uci/covtype-20k.csv.gz": "41e25cd9b494a7c99c417e0cb63b95ea1eed668c9314f6b4e742de68cc060e1f"},
        _numbers(skip=1),
        openml=1596,
        openml_rows=lambda: np.random.RandomState(0).permutation(581_012)[:20_000],
    ),
    "mnist": _Source(
        784,
        {0: 6903, 1: 7877, 2: 6990, 3: 7141, 4: 6824, 5: 6313, 6: 6876, 7: 7293, 8: 6825, 9: 6958},
        {
            "mnist/train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "mnist/train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "mnist/t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "mnist/t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        _images,
        openml=554,
        image_shape=(28, 28),
        num_train=60_000,
    ),
    "pines": _Source(
        2,
        {0: 126},
        {"pines.csv": "c57af2e9f2a38ed99a3884fbf81ad1b0c607adcf7749bad53a6df66ef313c89a"},
        _points,
    ),
}
_BUNDLED: dict[str, tuple[str, tuple[int, int] | None]] = {
    "digits": ("load_digits", (8, 8)),
    "breast-cancer": ("load_breast_cancer", None),
    "wine": ("load_wine", None),
}


def _scikit_learn(name: str) -> Any:
    try:
        return importlib.import_module("sklearn.datasets")
    except ImportError:
        raise ModuleNotFoundError(
            f"{name} needs scikit-learn, which is not installed; pip install 'pgps[data]'"
        ) from None


def _directories() -> list[Path]:
    named = os.environ.get("PGPS_DATA_DIR")
    if named and not Path(named).is_dir():
        raise ValueError(f"PGPS_DATA_DIR must be a directory, got {named!r}; correct or unset it")
    return [*([Path(named)] if named else []), cache_folder()]


def _checked(name: str, source: _Source, table: np.ndarray, origin: object) -> np.ndarray:
    """The table, if its shape and the rows of each class are the set's."""
    shape = (sum(source.counts.values()), source.num_columns + 1)
    if table.shape != shape:
        raise ValueError(
            f"{name} must have shape {shape} with its label, got {table.shape} from {origin}; fetch it anew"
        )
    values, nums = np.unique(table[:, -1], return_counts=True)
    found = dict(zip(values.tolist(), nums.tolist(), strict=True))
    if found != dict(source.counts):
        raise ValueError(
            f"{name} must have {dict(source.counts)} rows by label, got {found} from {origin}; fetch it anew"
        )
    return table


def _from_files(source: _Source, paths: list[Path]) -> np.ndarray:
    contents = [path.read_bytes() for path in paths]
    for path, content, expected in zip(paths, contents, source.files.values(), strict=True):
        found = hashlib.sha256(content).hexdigest()
        if found != expected:
            raise ValueError(
                f"{path} must have sha256 {expected}, got {found} for {len(content)} bytes: it is truncated, altered "
                "or another version; fetch it anew"
            )
    return source.read(*contents)


def _from_cache(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return arrays["table"]
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must hold a table, got a damaged file ({error}); delete it") from error


def _to_cache(path: Path, table: np.ndarray) -> None:
    # A cache that cannot be written costs the next call a download, and nothing else.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Moved into place whole: another process may be reading, and this one may be stopped.
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        with partial.open("wb") as file:
            np.savez_compressed(file, table=table)
        partial.replace(path)


def _from_openml(name: str, source: _Source) -> np.ndarray:
    """OpenML's table with the values of the files: its nominal values arrive as codes, its labels as words."""
    data = _scikit_learn(name).fetch_openml(data_id=source.openml, as_frame=False, parser="liac-arff")
    features = np.array(data.data, float)
    for column, words in (data.categories or {}).items():
        if column in data.feature_names:
            j = data.feature_names.index(column)
            codes = features[:, j]
            known = ~np.isnan(codes)
            features[known, j] = np.array(words, float)[codes[known].astype(int)]
    words = [str(label).strip("'\" ") for label in data.target]
    labels = [source.openml_labels[word] if source.openml_labels else float(word) for word in words]
    values, ranks = np.unique(labels, return_inverse=True)
    # Some uploaders have numbered the classes anew, in their order.
    labels = np.array(list(source.counts))[ranks] if len(values) == len(source.counts) else np.array(labels)
    table = np.column_stack([features, labels])
    return table if source.openml_rows is None else table[source.openml_rows()]


def _fetch(name: str, source: _Source, looked: str) -> np.ndarray:
    files = ", ".join(source.files)
    if source.openml is None:
        raise FileNotFoundError(
            f"{files} was not found in {looked}, and OpenML does not have it; copy it (the finpines of R's spatstat, "
            "scaled to the unit square) into a directory and set PGPS_DATA_DIR to it"
        )
    try:
        return _from_openml(name, source)
    except (ImportError, OSError, KeyError, ValueError, IndexError) as error:
        raise FileNotFoundError(
            f"{files} was not found in {looked}, and OpenML's data set {source.openml} could not be had "
            f"({type(error).__name__}: {error}); set PGPS_DATA_DIR to a directory that has it, or try again"
        ) from error


def load_table(name: str) -> Float[np.ndarray, "rows columns"]:
    """All rows as published: features, then the label's own value, with nan where a value is missing.

    Letters are numbered in their order (SONAR: M 0, R 1) and GLASS is without its running number. From OpenML the rows
    may come in another order.
    """
    name = str(name).lower()
    if name in _BUNDLED:
        bundle = getattr(_scikit_learn(name), _BUNDLED[name][0])()
        return np.column_stack([bundle.data, bundle.target]).astype(float)
    if name not in _SOURCES:
        known = ", ".join([*_SOURCES, *_BUNDLED])
        raise ValueError(f"name must be one of {known}, got {_checks.show(name)}; choose one of these")
    source, directories = _SOURCES[name], _directories()
    for directory in directories:
        paths = [directory / file for file in source.files]
        if all(path.is_file() for path in paths):
            return _checked(name, source, _from_files(source, paths), directory)
    kept = cache_folder() / "openml" / f"{name}.npz"
    if kept.is_file():
        return _checked(name, source, _from_cache(kept), kept)
    looked = " or ".join(map(str, directories))
    table = _checked(name, source, _fetch(name, source, looked), f"OpenML's data set {source.openml}")
    _to_cache(kept, table)
    return table


def load_dataset(name: str, *, drop_missing: bool = True) -> Dataset:
    """A data set as the experiments use it, from `load_table`.

    Rows with a missing value (6 of HEART) are dropped, unless they are to be kept, as nan. Labels are 0 .. K - 1 in the
    order of their values; HEART's are 1 for disease of any grade. The locations of `pines` are one class.

    Args:
        name: sonar, wine-white, wine-red, australian, heart, glass, covertype (20,000 rows of it), mnist, pines; or
            digits, breast-cancer, wine, which are in scikit-learn. Capitals are fine.
        drop_missing: Whether to drop rows with a missing value; `split` fills in those that are kept.
    """
    table = load_table(name)
    name = name.lower()
    if drop_missing:
        table = table[~np.isnan(table).any(axis=1)]
    source = _SOURCES.get(name)
    values = table[:, -1] > 0 if source and source.binary else table[:, -1]
    classes, labels = np.unique(values, return_inverse=True)
    image_shape = source.image_shape if source else _BUNDLED[name][1]
    return Dataset(name, table[:, :-1], labels, len(classes), image_shape, source.num_train if source else None)


def standardise(
    train: Float[np.ndarray, "n d"], *others: Float[np.ndarray, "m d"]
) -> tuple[Float[np.ndarray, "_ d"], ...]:
    """Each array less the mean of `train` over its standard deviation (that of its rows: divided by n).

    A column that is constant in `train` is divided by 1, so that it is 0 there.
    """
    for part in (train, *others):
        if not np.all(np.isfinite(part)):
            row, column = np.argwhere(~np.isfinite(part))[0]
            raise ValueError(
                f"features must be finite, got {part[row, column]} in row {row}, column {column}; "
                "drop the row or fill it in"
            )
    # The mean of equal numbers may differ from them by a rounding error, which would be scaled up to 1.
    constant = np.ptp(train, axis=0) == 0
    mean = np.where(constant, train[0], train.mean(axis=0))
    scale = np.where(constant, 1.0, train.std(axis=0))
    return tuple((part - mean) / scale for part in (train, *others))


def fill_missing(
    train: Float[np.ndarray, "n d"], *others: Float[np.ndarray, "m d"]
) -> tuple[Float[np.ndarray, "_ d"], ...]:
    """Each array with the column's median in `train` in place of nan."""
    unknown = np.flatnonzero(np.all(np.isnan(train), axis=0))
    if unknown.size:
        raise ValueError(f"features must be known in some training row, got nan alone in column {unknown[0]}; drop it")
    medians = np.nanmedian(train, axis=0)
    return tuple(np.where(np.isnan(part), medians, part) for part in (train, *others))


def partition(dataset: Dataset, seed: int, test_fraction: float = 0.5) -> tuple[Dataset, Dataset]:
    """The training and the test part, features as they are: random rows, or the publishers' parts where there are such.

    Args:
        dataset: What to part.
        seed: The random rows' seed; of no effect on MNIST, which has parts of its own.
        test_fraction: The share of rows in the test part; of no effect on MNIST either.
    """
    _checks.between("test_fraction", test_fraction, 0, 1)
    _checks.whole("seed", seed, at_least=0)
    num = len(dataset.labels)
    rows, num_train = np.arange(num), dataset.num_train
    if num_train is None:
        rows, num_train = np.random.default_rng(seed).permutation(num), num - round(num * test_fraction)
    if not 0 < num_train < num:
        raise ValueError(f"test_fraction must leave rows in both parts, got {test_fraction} of {num} rows; change it")

    return dataset.part(rows[:num_train]), dataset.part(rows[num_train:])


def split(dataset: Dataset, seed: int, test_fraction: float = 0.5) -> tuple[Dataset, Dataset]:
    """The training and the test part of `partition`, filled in and standardised with the training part alone.

    A class may be in the test part only (WINE-WHITE has five rows of its last): labels and `num_classes` stay the
    whole set's, so a model has an output for it all the same.
    """
    train, test = partition(dataset, seed, test_fraction)
    if len(np.unique(train.labels)) < 2:
        raise ValueError(
            f"the training part must have two classes or more, got {_checks.show(np.unique(train.labels).tolist())} in "
            f"{len(train.labels)} rows; use another seed or a smaller test_fraction"
        )
    features = standardise(*fill_missing(train.features, test.features))
    return replace(train, features=features[0]), replace(test, features=features[1])
