"""Arrays, frames and samples become the numbers they show, or are refused by their row."""

import warnings
from collections import namedtuple
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import fedveil as fv
from fedveil.data import from_torch
from fedveil.errors import FieldError
from fedveil.learning.arrays import tensor_of
from fedveil.learning.clients import as_client

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 0, 1])


class Listed(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[:, ::-1][:, ::-1],
        lambda x: x[::-1].copy()[::-1],
        lambda x: np.asfortranarray(x),
        lambda x: x.astype(">f4"),
        lambda x: x.astype(">f8"),
        lambda x: x.astype("f2"),
        lambda x: x.astype("longdouble"),
        lambda x: x.astype(object),
        lambda x: np.array([[Fraction(int(v)) for v in row] for row in x], dtype=object),
        lambda x: np.ma.masked_less(x, -1),
        read_only,
        lambda x: x.tolist(),
        list,
        lambda x: [torch.from_numpy(row) for row in x],
        lambda x: torch.from_numpy(x).double(),
        lambda x: np.asmatrix(x),
    ],
)
def test_numbers_are_the_same_however_they_are_stored(make):
    client = as_client((make(X), Y), "client")
    assert client.x.tolist() == X.tolist()
    assert client.x.is_contiguous() or client.x.stride() == (1, 4)


def test_views_are_what_they_show_and_memory_maps_are_read(tmp_path):
    assert as_client((X[:, ::-1], Y[::-1]), "client").x[0].tolist() == [2, 1, 0]
    assert as_client((X[:, ::-1], Y[::-1]), "client").y.tolist() == [1, 0, 1, 0]
    np.save(tmp_path / "x.npy", X)
    assert (
        as_client((np.load(tmp_path / "x.npy", mmap_mode="r"), Y), "client").x.tolist()
        == X.tolist()
    )
    same = np.broadcast_to(X[0], (4, 3))
    assert as_client((same, Y), "client").x.tolist() == [X[0].tolist()] * 4


@pytest.mark.parametrize("kind", ["?", "u1", "u2", "i4", ">i2", "O"])
def test_classes_of_every_type_of_whole_number(kind):
    assert as_client((X, Y.astype(kind)), "client").y.tolist() == [0, 1, 0, 1]


masked = np.ma.masked_equal(X, 4)
fields = np.zeros(4, dtype=[("age", "f4"), ("bp", "f4")])
holey = X.astype(object)
holey[1, 1] = None


@pytest.mark.parametrize(
    ("x", "y", "place"),
    [
        (masked, Y, "clients.x[1]"),
        (list(masked), Y, "clients.x[1][1]"),
        (X, np.ma.masked_equal(Y, 1), "clients.y[1]"),
        (fields, Y, "clients.x"),
        (holey, Y, "clients.x[1]"),
        (X.astype(str), Y, "clients.x"),
        (X.astype(str).astype(object), Y, "clients.x[0]"),
        (X.astype("datetime64[s]"), Y, "clients.x"),
        (X.astype("timedelta64[s]"), Y, "clients.x"),
        (X.astype(complex), Y, "clients.x"),
        (torch.from_numpy(X).to_sparse(), Y, "clients.x"),
        ([[1.0, 2.0], [1.0]], Y[:2], "clients.x"),
        (X, ["ill", "well", "ill", "well"], "clients.y"),
    ],
)
def test_what_is_missing_or_no_number_is_refused_by_its_row(x, y, place):
    with pytest.raises(FieldError) as refused:
        as_client((x, y), "clients")
    assert refused.value.field == place


def test_sparse_matrices_are_refused():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(FieldError, match="toarray"):
        as_client((sparse.csr_matrix(X), Y), "client")


def test_frames_are_read_by_their_columns():
    pd = pytest.importorskip("pandas")
    frame, y = pd.DataFrame(X, columns=["a", "b", "c"]), pd.Series(Y, name="y")
    assert as_client((frame, y), "client").x.tolist() == X.tolist()
    mixed = frame.assign(a=[True, False, True, False], b=pd.array([1, 2, 3, 4], dtype="Int64"))
    assert as_client((mixed, y), "client").x[:2].tolist() == [[1, 1, 2], [0, 2, 5]]
    bad = {
        "missing": frame.assign(b=pd.array([1, None, 3, 4], dtype="Int64")),
        "times": frame.assign(b=pd.date_range("1990", periods=4)),
        "texts": frame.assign(b=list("fmfm")),
        "kinds": frame.assign(b=pd.Categorical(list("fmfm"))),
    }
    for one in bad.values():
        with pytest.raises(FieldError, match="'b'"):
            as_client((one, y), "client")
    for label in (pd.Series([0, None, 0, 1], dtype="Int64"), pd.Series(["i", "w", "i", "w"])):
        with pytest.raises(FieldError, match=r"client\.y"):
            as_client((frame, label), "client")


def test_rows_and_columns_of_frames_are_not_mixed_up():
    pd = pytest.importorskip("pandas")
    frame, y = pd.DataFrame(X, columns=["a", "b", "c"]), pd.Series(Y, name="y")
    with pytest.raises(FieldError, match="index"):
        as_client((frame.iloc[::-1], y), "client")
    with pytest.raises(FieldError, match="column of x"):
        as_client((frame.assign(y=Y), y), "client")
    turned = frame[["b", "a", "c"]]
    with pytest.raises(FieldError, match="test_x"):
        as_client((frame, y, turned, y), "client")
    with pytest.raises(FieldError, match=r"clients\[1\]"):
        fv.Federation(model=torch.nn.Linear(3, 2), clients=[(frame, y), (turned, y)])
    assert as_client((frame.iloc[::-1], y.iloc[::-1]), "client").y.tolist() == [1, 0, 1, 0]


Sample = namedtuple("Sample", "image label")
Turned = namedtuple("Turned", "label image")


def test_samples_are_pairs():
    wanted = as_client(Listed([(x, int(y)) for x, y in zip(X, Y, strict=True)]), "client")
    odd = [(x.astype(">f4")[::-1][::-1], np.int64(y)) for x, y in zip(X, Y, strict=True)]
    named = [Sample(x, int(y)) for x, y in zip(X, Y, strict=True)]
    for samples in (odd, named):
        assert torch.equal(as_client(Listed(samples), "client").x, wanted.x)
        assert torch.equal(from_torch(Listed(samples)).x, wanted.x)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"img": X[0], "label": 0}, "img, label"),
        ((X[0], 0, "meta"), "3 parts"),
        (Turned(0, X[0]), "begins with its label"),
        ((np.ma.masked_equal(X[0], 1), 0), "masked"),
        ((X[0].astype(str), 0), "numbers"),
        (X[0], "pair"),
    ],
)
def test_samples_that_are_no_pairs_are_refused(sample, said):
    for attempt in (as_client, lambda data, name: from_torch(data)):
        with pytest.raises(FieldError, match=said):
            attempt(Listed([sample] * 2), "client")


def test_hugging_face_s_rows_are_refused_by_their_keys():
    datasets = pytest.importorskip("datasets")
    with pytest.raises(FieldError, match="img, label"):
        as_client(datasets.Dataset.from_dict({"img": X.tolist(), "label": Y.tolist()}), "client")


def test_a_collate_function_of_one_s_own_makes_the_pairs():
    data = Listed([{"img": x, "label": int(y)} for x, y in zip(X, Y, strict=True)])

    def pairs(samples):
        return torch.tensor(np.stack([s["img"] for s in samples])), torch.tensor(
            [s["label"] for s in samples]
        )

    assert as_client(DataLoader(data, collate_fn=pairs), "client").x.tolist() == X.tolist()
    with pytest.raises(FieldError, match="all 4 samples"):
        as_client(DataLoader(data, collate_fn=lambda samples: pairs(samples[:1])), "client")
    with pytest.raises(FieldError, match="img, label"):
        as_client(DataLoader(data), "client")


def test_what_a_loader_samples_is_said_or_refused():
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    weighted = WeightedRandomSampler([1.0, 2.0, 1.0, 2.0], 4)
    for loader in (
        DataLoader(data, sampler=weighted),
        DataLoader(data, sampler=RandomSampler(data, replacement=True)),
        DataLoader(data, sampler=RandomSampler(data, num_samples=2)),
        DataLoader(data, batch_size=3, drop_last=True),
        DataLoader(data, batch_sampler=BatchSampler(weighted, 2, False)),
        DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 3, True)),
    ):
        with pytest.warns(UserWarning, match="not used"):
            assert as_client(loader, "client").examples == 4
    some = SubsetRandomSampler([0, 1])
    for loader in (
        DataLoader(data, sampler=some),
        DataLoader(data, batch_sampler=Batches(some, 2, False)),
        DataLoader(data, batch_sampler=BatchSampler(some, 2, False)),
    ):
        with pytest.raises(FieldError, match="Subset"):
            as_client(loader, "client")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_client(DataLoader(data, shuffle=True, batch_size=3), "client")
        as_client(torch.utils.data.Subset(data, [0, 1]), "client")


class Batches(BatchSampler):
    pass


def test_labels_keep_their_kind():
    assert tensor_of([0.5, 1.0], "y", labels=True).dtype == torch.float64
    assert tensor_of(np.array([0.5, 1.0], "f2"), "y", labels=True).is_floating_point()
