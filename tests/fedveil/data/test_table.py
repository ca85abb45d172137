"""Tables: columns as they were declared, never scaled by everybody's statistics; refusals name file, row and column."""

import gzip
import sys

import numpy as np
import pytest
import torch

from fedveil.data import MissingDataError, federate, load
from fedveil.errors import FedVeilError, FieldError

pd = pytest.importorskip("pandas")

CSV = """hospital,age,sex,cost,outcome
010,20,f,100,well
010,60,m,300,ill
020,40,f,500,well
020,80,m,700,ill
"""
COLUMNS = {"age": [0, 100], "sex": ["f", "m"]}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    return tmp_path / "a.csv"


def test_declared_columns_by_hand(file):
    data = load("table", path=str(file), target="outcome", classes=["ill", "well"], columns=COLUMNS)
    expected = [[0.2, 1, 0], [0.6, 0, 1], [0.4, 1, 0], [0.8, 0, 1]]
    torch.testing.assert_close(data.x, torch.tensor(expected, dtype=torch.float32))
    assert data.y.tolist() == [1, 0, 1, 0]
    assert (data.class_names, data.local_columns, data.owner) == (("ill", "well"), (), None)


def test_a_regression_in_declared_units_with_clients_that_keep_their_zeros(file):
    options = {"target": "cost", "target_range": [0, 1000], "columns": {"age": [0, 100]}}
    data = load("table", path=file, client_column="hospital", **options)
    assert data.y.tolist() == [pytest.approx(v) for v in (0.1, 0.3, 0.5, 0.7)]
    assert (data.owners, data.owner.tolist(), data.task) == (
        ("010", "020"),
        [0, 0, 1, 1],
        "regression",
    )
    assert "units of 1000 above 0" in data.note


def test_values_outside_are_refused_or_clipped(file):
    options = {"path": file, "target": "cost", "target_range": [0, 1000]}
    with pytest.raises(
        FieldError, match=r"a\.csv, row 4 \(line 5\), column age = 80\.0: is outside.*\[0, 70\]"
    ):
        load("table", columns={"age": [0, 70]}, **options)
    data = load("table", columns={"age": [0, 70]}, outside="clip", **options)
    assert float(data.x.max()) == 1.0
    assert "clipped" in data.note


def rows(**changes):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"site": np.repeat(["a", "b", "c"], [20, 20, 1]), "v": rng.normal(50, 9, 41), "y": 0}
    )
    frame.loc[::2, "y"] = 1
    for site, (scale, shift) in changes.items():
        frame.loc[frame.site == site, "v"] = frame.loc[frame.site == site, "v"] * scale + shift
    return frame


def test_local_scaling_uses_a_client_s_own_training_rows_and_nobody_else_s(tmp_path):
    def clients(**changes):
        rows(**changes).to_csv(tmp_path / "t.csv", index=False)
        data = load(
            "table",
            path=tmp_path / "t.csv",
            target="y",
            classes=2,
            columns=["v"],
            client_column="site",
            scale="client",
        )
        return federate(data, clients="natural", seed=1)

    first, other = clients(), clients(b=(7.0, -300.0))
    assert torch.equal(first[0].x, other[0].x)  # another client's values change nothing here
    assert torch.equal(first[0].test_x, other[0].test_x)
    torch.testing.assert_close(
        first[1].x, other[1].x, atol=1e-5, rtol=1e-5
    )  # and a change of units is undone
    for client in first[:2]:
        assert float(client.x.mean()) == pytest.approx(0, abs=1e-6)
        assert float(client.x.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert first[2].x.tolist() == [[0.0]]  # one row: only centred


def test_other_spellings_of_a_table(tmp_path, file):
    wanted = load("table", path=file, target="outcome", classes=["ill", "well"], columns=COLUMNS)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    german = CSV.replace(",", ";").replace(";20;", ";20,0;")
    (tmp_path / "g.csv").write_text(german)
    for name, extra in (("a.csv.gz", {}), ("g.csv", {"separator": ";", "decimal": ","})):
        data = load(
            "table",
            path=tmp_path / name,
            target="outcome",
            classes=["ill", "well"],
            columns=COLUMNS,
            **extra,
        )
        assert torch.equal(data.x, wanted.x)
    both = load(
        "table",
        path=file,
        test_path=str(file),
        target="outcome",
        classes=["ill", "well"],
        columns=COLUMNS,
    )
    assert torch.equal(both.test_x, wanted.x)
    plain = load(
        "table",
        path=file,
        target="cost",
        target_range=[0, 1],
        outside="clip",
        columns=["age"],
        scale="none",
    )
    assert plain.x.flatten().tolist() == [20, 60, 40, 80]


DECLARED = {"target": "outcome", "classes": ["ill", "well"], "columns": COLUMNS}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("60,m", ",m", r"a\.csv, row 2 \(line 3\), column age is missing: must not be empty"),
        ("60,m", "old,m", r"a\.csv, row 2 \(line 3\), column age = 'old': must be a finite number"),
        ("60,m", "nan,m", r"a\.csv, row 2 \(line 3\), column age = 'nan': must not be empty"),
        ("60,m", "1e999,m", r"a\.csv, row 2 \(line 3\), column age"),
        ("60,m", "60,w", r"a\.csv, row 2 \(line 3\), column sex = 'w'.*accepted: f, m"),
        ("300,ill", "300,sick", r"a\.csv, row 2 \(line 3\), column outcome = 'sick'"),
        ("300,ill", "300,", r"a\.csv, row 2 \(line 3\), column outcome is missing"),
        ("300,ill", "300", r"a\.csv, row 2 \(line 3\), column outcome is missing"),
        ("300,ill", "300,ill,5", r"a\.csv.*cannot be read as CSV.*line 3"),
        ("sex,", "age,", r"a\.csv, header.*must name each column once"),
        (CSV, "", "is empty"),
        (CSV, "hospital,age,sex,cost,outcome\n", "holds no row"),
        ("hospital", "h\udcffspital", "UTF-8"),
    ],
)
def test_bad_values_name_file_row_and_column(tmp_path, old, new, message):
    text = CSV.replace(old, new, 1)
    assert text != CSV
    (tmp_path / "a.csv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(FieldError, match=message):
        load("table", path=tmp_path / "a.csv", **DECLARED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"columns": {"agee": [0, 1]}},
            r"data\.columns\.agee = 'agee': is no column of a\.csv; did you mean 'age'",
        ),
        ({"target": "outcom"}, r"data\.target = 'outcom'.*did you mean 'outcome'"),
        ({"client_column": "hospitl"}, r"data\.client_column = 'hospitl'.*did you mean 'hospital'"),
        ({"columns": {"age": [100, 0]}}, r"data\.columns\.age = \[100, 0\]: must be \[low, high\]"),
        ({"columns": {"age": []}}, r"data\.columns\.age = \[\]: must be \[low, high\]"),
        ({"columns": {"outcome": ["ill", "well"]}}, "cannot be an input as well"),
        (
            {"columns": ["age"]},
            r"data\.scale = 'declared': needs data\.columns.*release of private statistics",
        ),
        ({"columns": ()}, r"data\.scale = 'declared': needs data\.columns"),
        ({"classes": 0}, "say what the target is"),
        ({"target_range": [0, 1]}, "say what the target is"),
        ({"classes": ["ill", "well", "dead"]}, r"no example of class 2.*data\.absent = \[2\]"),
        ({"classes": ["ill", "ill"]}, "must name each class once"),
        ({"scale": "global"}, "accepted: client, declared, none"),
        ({"max_rows": 3}, r"holds more than 3 rows; raise data\.max_rows"),
        ({"max_gib": 1e-8}, r"raise data\.max_gib"),
    ],
)
def test_options_that_do_not_fit(file, changes, message):
    with pytest.raises(FieldError, match=message):
        load("table", path=file, **{**DECLARED, **changes})


@pytest.mark.parametrize(
    ("values", "classes", "message"),
    [
        (
            [1, 2, 1, 2],
            2,
            r"n\.csv, row 2 \(line 3\), column y = 2: must be one of the 2 declared classes, 0 to 1",
        ),
        ([1, 2, 1, 2], 3, r"n\.csv:y\[0\] = 1: the lowest label is 1.*subtract 1"),
        ([0, 2, 0, 2], 3, "no example of class 1 among 3 classes"),
        ([0, 1, 0.5, 1], 2, r"n\.csv, row 3 \(line 4\), column y = 0\.5: must be the whole number"),
        ([0, 1, -1, 1], 2, r"n\.csv, row 3 \(line 4\), column y = -1"),
    ],
)
def test_numbers_as_classes(tmp_path, values, classes, message):
    pd.DataFrame({"v": [1, 2, 3, 4], "y": values}).to_csv(tmp_path / "n.csv", index=False)
    with pytest.raises(FieldError, match=message):
        load("table", path=tmp_path / "n.csv", target="y", classes=classes, columns={"v": [0, 9]})


def test_a_gap_that_is_meant(tmp_path):
    pd.DataFrame({"v": [1, 2], "y": [0, 2]}).to_csv(tmp_path / "n.csv", index=False)
    data = load(
        "table", path=tmp_path / "n.csv", target="y", classes=3, absent=[1], columns={"v": [0, 9]}
    )
    assert data.classes == 3


def test_files_that_are_none(tmp_path, file):
    with pytest.raises(MissingDataError, match="is no file"):
        load("table", path=tmp_path / "b.csv", **DECLARED)
    with pytest.raises(MissingDataError, match=r"data\.test_path"):
        load("table", path=file, test_path=str(tmp_path / "b.csv"), **DECLARED)
    (tmp_path / "b.xlsx").touch()
    with pytest.raises(FieldError, match=r"must end in \.csv"):
        load("table", path=tmp_path / "b.xlsx", **DECLARED)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(CSV.encode())[:40])
    with pytest.raises(FieldError, match="cannot be unpacked"):
        load("table", path=tmp_path / "b.csv.gz", **DECLARED)
    with pytest.raises(FieldError, match="belong to no client"):
        load("table", path=file, test_path=str(file), **{**DECLARED, "scale": "client"})


@pytest.mark.parametrize(
    ("module", "hint"),
    [("pandas", r'pip install "fedveil\[data\]"'), ("pyarrow", "pip install pyarrow")],
)
def test_what_is_not_installed_is_named(tmp_path, monkeypatch, module, hint):
    suffix = "csv" if module == "pandas" else "parquet"
    (tmp_path / f"a.{suffix}").write_text(CSV)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(FedVeilError, match=hint):
        load("table", path=tmp_path / f"a.{suffix}", **DECLARED)


def test_parquet(tmp_path, file):
    pytest.importorskip("pyarrow")
    frame = pd.read_csv(file, dtype={"hospital": str})
    frame.to_parquet(tmp_path / "a.parquet")
    data = load("table", path=tmp_path / "a.parquet", client_column="hospital", **DECLARED)
    wanted = load("table", path=file, client_column="hospital", **DECLARED)
    assert torch.equal(data.x, wanted.x)
    assert torch.equal(data.owner, wanted.owner)
    frame.assign(age=[1.0, np.nan, 3.0, 4.0]).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(FieldError, match=r"b\.parquet, row 2, column age"):
        load("table", path=tmp_path / "b.parquet", **DECLARED)
    frame.assign(age=pd.Timestamp("2020-01-01")).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(FieldError, match=r"c\.parquet:age = 'datetime64.*must hold numbers"):
        load("table", path=tmp_path / "c.parquet", **DECLARED)
    (tmp_path / "d.parquet").write_bytes(b"PAR1 and nothing")
    with pytest.raises(FieldError, match="cannot be read as parquet"):
        load("table", path=tmp_path / "d.parquet", **DECLARED)
    with pytest.raises(FieldError, match=r"raise data\.max_rows"):
        load("table", path=tmp_path / "a.parquet", max_rows=3, **DECLARED)


KINDS = {
    "missing": ["indicator", 3, ["v"]],
    "columns": [3, None, {3: [0, 1]}],
    "classes": [2.5],
    "target": [3, None, ["ill"]],
    "client_column": [3, ["age"]],
    "person": [3, ["age"]],
    "target_range": [3],
    "absent": [3, "x"],
    "path": [3, None],
    "separator": [3],
}


@pytest.mark.parametrize(
    ("option", "value"), [(o, v) for o, values in KINDS.items() for v in values]
)
def test_an_option_of_another_kind_is_refused_by_its_name(tmp_path, option, value):
    path = tmp_path / "kinds.csv"
    path.write_text("age,v,ill\n" + "3,1,0\n7,2,1\n" * 4)
    how = {"path": str(path), "target": "ill", "classes": 2, "scale": "none", option: value}
    with pytest.raises(FieldError) as refused:
        load("table", **how)
    assert refused.value.field == f"data.{option}"
