"""What `fedveil init` reads off a table is what the loader reads; what it cannot read it refuses by its row."""

import tomllib

import numpy as np
import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.data import load
from fedveil.errors import FieldError
from fedveil_lab.config.columns import around, read_off
from fedveil_lab.config.first import first_config, read_columns

pd = pytest.importorskip("pandas")

COUNT = 40


def table(tmp_path, values, name="v", separator=",", quoted=True):
    """A CSV file of one column beside a dose and a target of two classes."""
    many = [values[i % len(values)] for i in range(COUNT)]
    lines = [f"{name}{separator}dose{separator}y"]
    for i, value in enumerate(many):
        text = f'"{value}"' if quoted else value
        lines.append(f"{text}{separator}{i % 7 + 1}{separator}{i % 2}")
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "t.csv"


@pytest.mark.parametrize(
    ("values", "separator", "style", "limits"),
    [
        (["1,234", "987", "12,345"], ",", {"thousands": ","}, [987, 12345]),
        (["1,234.5", "987"], ";", {"separator": ";", "thousands": ","}, [987, 1235]),
        (
            ["1.234", "987,5", "12.345"],
            ";",
            {"separator": ";", "decimal": ",", "thousands": "."},
            [987, 12345],
        ),
        (["0,123", "0,456"], ";", {"separator": ";", "decimal": ","}, [0.1, 0.5]),
        (["0,5", "12,345"], ";", {"separator": ";", "decimal": ","}, [0, 13]),
        (["1'234.5", "3"], ",", {"thousands": "'"}, [3, 1235]),
        (["1 234", "3"], ",", {"thousands": " "}, [3, 1234]),
        (
            ["1\u00a0234,5", "3"],
            ";",
            {"separator": ";", "decimal": ",", "thousands": " "},
            [3, 1235],
        ),
        (["12,34,567", "3"], ",", {"thousands": ","}, [3, 1234567]),
        (["1.234", "0.5"], ";", {"separator": ";"}, [0.5, 1.3]),
    ],
)
def test_separators_are_read_off_and_the_loader_reads_the_same(
    tmp_path, values, separator, style, limits
):
    about, _ = read_columns(table(tmp_path, values, separator=separator), "", "", "")
    assert {
        key: about[key] for key in ("separator", "decimal", "thousands") if key in about
    } == style
    assert about["columns"]["v"] == limits
    data = load(**about)
    assert 0 <= float(data.x.min()) <= float(data.x.max()) <= 1


@pytest.mark.parametrize(
    ("values", "separator"), [(["1.234", "450"], ";"), (["1,234", "450"], ";")]
)
def test_a_text_that_may_be_two_numbers_is_refused_until_it_is_said(tmp_path, values, separator):
    path = table(tmp_path, values, separator=separator)
    with pytest.raises(FieldError, match="row 1"):
        read_columns(path, "", "", "")
    for decimal, thousands, highest in (
        (".", ",", 1234),
        (",", ".", 1234),
        (",", "", 450),
        (".", "", 450),
    ):
        readable = not (set(values[0]) & {".", ","}) - {decimal, thousands}
        if readable:
            limits = read_columns(path, "", "", "", decimal=decimal, thousands=thousands)[0][
                "columns"
            ]["v"]
            assert limits[1] == (highest if thousands and thousands in values[0] else 450)


@pytest.mark.parametrize(
    "odd",
    [
        "5%",
        "$5",
        "5 \u20ac",
        "CHF 5",
        "(5)",
        "5-",
        "0x1F",
        "\u22125",
        "\u0661\u0662",
        "1_000",
        "inf",
        "1.5x10^3",
        "<5",
        "5 mg",
    ],
)
def test_a_number_in_another_writing_is_refused_by_its_row(tmp_path, odd):
    with pytest.raises(FieldError, match=r"row 30 \(line 31\), column v"):
        read_columns(table(tmp_path, [*map(str, range(29)), odd]), "y", "", "")
    many = [odd.replace("5", str(i)) for i in range(5, 30)]
    with pytest.raises(FieldError, match=r"row 1 \(line 2\), column v"):
        read_columns(table(tmp_path, many if len(set(many)) > 1 else [odd]), "y", "", "")


@pytest.mark.parametrize(
    "mark", ["", "NA", "N/A", "?", "-", ".", "NULL", "none", "nan", "missing", "unknown", "<NA>"]
)
def test_a_gap_among_numbers_is_refused_or_indicated(tmp_path, mark):
    path = table(tmp_path, [*map(str, range(29)), mark])
    with pytest.raises(FieldError, match=r"row 30 \(line 31\), column v"):
        read_columns(path, "y", "", "")
    about, _ = read_columns(path, "y", "", "", missing="indicator")
    assert about["columns"]["v"] == [0, 28]
    data = load(**about)
    assert data.x[29].tolist()[:2] == [0, 1]
    assert data.x[:29, 1].sum() == 0
    with pytest.raises(FieldError, match=r"row 30 \(line 31\), column v"):
        read_columns(path, "v", "", "", missing="indicator")


def test_a_target_spelt_unknown_is_no_class_and_none_may_be_one(tmp_path):
    with pytest.raises(FieldError, match="row 3"):
        read_columns(table(tmp_path, ["ill", "well", "unknown"]), "v", "", "")
    found = read_off(table(tmp_path, ["none", "mild", "severe"]), "v", "", "")
    assert found.about["classes"] == ["mild", "none", "severe"]
    assert any("'none'" in line for line in found.said)


def test_a_text_among_numbers_is_no_class(tmp_path):
    with pytest.raises(FieldError, match="row 11"):
        read_columns(table(tmp_path, [*"0101010101", "score"]), "v", "", "")


@pytest.mark.parametrize(
    "values", [["TRUE", "FALSE", "1"], ["yes", "no", "y"], ["1", "0", "ja", "nein"]]
)
def test_yes_and_no_are_written_in_one_way(tmp_path, values):
    for target in ("y", "v"):
        with pytest.raises(FieldError, match="column v"):
            read_columns(table(tmp_path, values), target, "", "")


def test_numbers_beyond_what_the_loader_takes_are_refused(tmp_path):
    for target in ("y", "v"):
        with pytest.raises(FieldError, match="row 2 "):
            read_columns(table(tmp_path, ["1", "1e300", "2.5"]), target, "", "")


@pytest.mark.parametrize(
    ("values", "target"),
    [(["Male", "male ", "f"], "y"), (["m", "M"], "y"), (["1", "2", "1.0"], "v"), (["a", "A"], "v")],
)
def test_a_category_spelt_twice_is_refused_by_its_row(tmp_path, values, target):
    with pytest.raises(FieldError, match=r"row [23] .*column v"):
        read_columns(table(tmp_path, values), target, "", "")


def test_numbers_spelt_twice_are_numbers(tmp_path):
    assert read_columns(table(tmp_path, ["0", "0.0", "1"]), "y", "", "")[0]["columns"]["v"] == [
        0,
        1,
    ]


@pytest.mark.parametrize("header", ["Ann Lee,40,1", "2020-01-02,dose,y", "f,dose,y", "1.5,dose,y"])
def test_a_table_without_a_header_is_refused_and_shows_no_name(tmp_path, header):
    values = {"f": ["f", "m"], "1.5": ["2.5", "3.5"], "2020-01-02": ["2020-01-03"]}.get(
        header.split(",")[0], ["Bob"]
    )
    path = table(tmp_path, values)
    path.write_text("\n".join([header, *path.read_text().splitlines()[1:]]))
    with pytest.raises(FieldError) as refused:
        first_config("t", str(path), 4, "client")
    assert "Ann" not in str(refused.value)


@pytest.mark.parametrize("rows", ["0,1\n1,0\n", "3,4,5,6\n1,2,3,4\n", "12,x,0\n14,y,1\n"])
def test_a_first_row_of_numbers_is_no_header(tmp_path, rows):
    (tmp_path / "t.csv").write_text(rows)
    target = rows.split("\n")[0].split(",")[-1]
    with pytest.raises(FieldError, match="header"):
        read_columns(tmp_path / "t.csv", "", "", "")
    with pytest.raises(FieldError, match="header"):
        load("table", path=tmp_path / "t.csv", target=target, classes=2, scale="none")


def test_columns_numbered_by_pandas_have_a_header(tmp_path):
    pd.DataFrame(np.random.default_rng(0).normal(size=(30, 4))).assign(y=[0, 1] * 15).to_csv(
        tmp_path / "t.csv", index=False
    )
    assert set(read_columns(tmp_path / "t.csv", "", "", "")[0]["columns"]) == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("numbers", "limits"),
    [
        ([0, 1e-5], [0, 1e-5]),
        ([1.2e-5, 4.5e-5], [1e-5, 5e-5]),
        ([0.12, 0.87], [0.1, 0.9]),
        ([36.2, 36.9], [36.2, 36.9]),
        ([3, 8.4], [3, 9]),
        ([-120.5, 17], [-121, 17]),
        ([5, 5], [5, 6]),
    ],
)
def test_ranges_fit_the_spread_of_a_column(numbers, limits):
    found = around(np.array(numbers, dtype=float))
    assert found == pytest.approx(limits)
    assert found[0] <= min(numbers)
    assert found[1] >= max(numbers)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([*range(1, COUNT + 1)], "counter"),
        ([*range(COUNT, 0, -1)], "counter"),
        ([i // 2 for i in range(COUNT)], ""),  # 20 numbers: few enough to be a measurement
        ([20240100 + 1 + i % 28 for i in range(COUNT)], "date"),
        ([f"{i % 24:02d}:15" for i in range(COUNT)], "date"),
        ([f"{1 + i % 28} Jan 2020" for i in range(COUNT)], "date"),
        ([f"V{i}" if i % 8 == 0 else f"{i * 3}.5" for i in range(COUNT)], "codes"),
        ([""], "empty"),
        ([f"00{i}" for i in range(COUNT)], "id"),
        ([2**60 + i for i in range(COUNT)], "id"),
        (["0", "1", "0", "1", "0", "1", "0", "1", "0", "1", "mg"], "codes"),
        ([40 + 2 * i for i in range(COUNT)], ""),
    ],
)
def test_what_is_no_measurement_is_left_out(tmp_path, values, kind):
    found = read_off(table(tmp_path, values), "y", "", "")
    assert found.left_out == ({"v": kind} if kind else {})
    rises = values[:3] == [40, 42, 44]
    assert any("rises" in line for line in found.said) == rises


@pytest.mark.parametrize(
    ("sentinel", "said"), [("-999", True), ("9999", True), ("-1", True), ("31", False)]
)
def test_a_number_that_may_stand_for_a_gap_is_said_and_not_guessed(tmp_path, sentinel, said):
    found = read_off(table(tmp_path, [*map(str, range(0, 30, 2)), sentinel]), "y", "", "")
    assert any(f"marks = [{sentinel}]" in line for line in found.said) == said
    assert "missing" not in found.about
    target = read_off(table(tmp_path, [*map(str, range(0, 30, 2)), sentinel]), "v", "", "")
    assert any(f"{sentinel} in" in line for line in target.said) == said


@pytest.mark.parametrize(
    ("name", "kind"), [("encounter_id", "id"), ("encounter", ""), ("LabNr", "id")]
)
def test_numbers_that_name_each_row_are_left_out_by_their_name(tmp_path, name, kind):
    numbers = np.random.default_rng(0).permutation(COUNT * 1000)[:COUNT] + 10000
    found = read_off(table(tmp_path, [*map(str, numbers)], name=name), "y", "", "")
    assert found.left_out == ({name: kind} if kind else {})


def test_codes_are_said_and_a_text_among_numbers_is_named(tmp_path):
    assert any(
        "codes" in line
        for line in read_off(table(tmp_path, ["1", "2", "5"], "type_code"), "y", "", "").said
    )
    found = read_off(table(tmp_path, [*map(str, range(29)), "4O"]), "y", "", "")
    assert found.left_out == {"v": "codes"}
    assert any("row 30 (line 31), column v = '4O'" in line for line in found.said)


def test_pandas_row_index_is_no_input_and_no_target(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"age": [30, 40, 50, 60] * 5, "ill": [0] * 10 + [1] * 10})
    named = frame.rename_axis("visit")
    for number, one in enumerate((frame[frame.age > 30], named[named.age > 30], frame)):
        path = tmp_path / f"{number}.parquet"
        one.to_parquet(path)
        about, left_out = read_columns(path, "", "", "")
        assert (about["target"], set(about["columns"])) == ("ill", {"age"})
        assert set(left_out.values()) <= {"index"}
        assert load("table", path=path, target="ill", classes=2, scale="none").x.shape == (
            len(one),
            1,
        )
        index = next(iter(left_out), "__index_level_0__")
        with pytest.raises(FieldError):
            read_columns(path, index, "", "")
    data = load(
        "table",
        path=tmp_path / "1.parquet",
        target="ill",
        classes=2,
        scale="none",
        columns=["age", "visit"],
    )
    assert data.x.shape[1] == 2
    for one in (frame, frame[frame.age > 30], frame.sample(frac=1, random_state=0)):
        one.to_csv(tmp_path / "i.csv")
        about, left_out = read_columns(tmp_path / "i.csv", "", "", "")
        assert (set(about["columns"]), left_out) == ({"age"}, {"Unnamed: 0": "index"})
        data = load("table", path=tmp_path / "i.csv", target="ill", classes=2, scale="none")
        assert data.x.shape == (len(one), 1)
        assert "Unnamed: 0" in data.note
    for unnamed in (
        "1.5,30,0",
        "a,30,0",
        "7,30,0",
        ",30,0",
    ):  # no index: a number, a text, twice the same, empty
        (tmp_path / "i.csv").write_text(f",age,ill\n7,40,1\n{unnamed}\n")
        for attempt in (
            lambda: read_columns(tmp_path / "i.csv", "", "", ""),
            lambda: load("table", path=tmp_path / "i.csv", target="ill", classes=2, scale="none"),
        ):
            with pytest.raises(FieldError, match="column 1"):
                attempt()
    frame.to_csv(tmp_path / "i.csv")
    pd.read_csv(tmp_path / "i.csv").to_csv(tmp_path / "j.csv", index=False)
    assert (
        load("table", path=tmp_path / "j.csv", target="ill", classes=2, scale="none").x.shape[1]
        == 1
    )


def test_parquet_columns_of_every_type(tmp_path):
    pytest.importorskip("pyarrow")
    from decimal import Decimal

    n = 30
    columns = {
        "born": pd.date_range("1990", periods=n),
        "zoned": pd.date_range("1990", periods=n, tz="UTC"),
        "stay": pd.to_timedelta(range(n), "D"),
        "day": pd.date_range("1990", periods=n).date,
        "list": [[1]] * n,
        "bytes": [b"x"] * n,
        "dose": [Decimal("1.5"), Decimal("2.5")] * (n // 2),
        "count": pd.array([3, 5] * (n // 2), dtype="Int64"),
        "flag": pd.array([True, False] * (n // 2), dtype="boolean"),
        "grade": pd.Categorical(["i", "ii"] * (n // 2)),
        "half": np.array([0.5, 1.5] * (n // 2), "float16"),
        "y": [0, 1] * (n // 2),
    }
    pd.DataFrame(columns).to_parquet(tmp_path / "t.parquet")
    about, left_out = read_columns(tmp_path / "t.parquet", "", "", "")
    assert left_out == dict.fromkeys(("born", "zoned", "stay", "day"), "date") | dict.fromkeys(
        ("list", "bytes"), "objects"
    )
    assert load(**about).x.shape == (n, 6)
    for column in left_out:
        with pytest.raises(FieldError, match=column):
            load(
                "table",
                path=tmp_path / "t.parquet",
                target="y",
                classes=2,
                scale="none",
                columns=[column],
            )
    columns["count"] = pd.array([3, None] * (n // 2), dtype="Int64")
    pd.DataFrame(columns).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(FieldError, match="row 2, column count"):
        read_columns(tmp_path / "t.parquet", "", "", "")


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("age,ill\n30,0\n".encode("utf-16"), "encoding"),
        ("age,stra\u00dfe,ill\n30,\u00fc,0\n".encode("latin-1"), "the header.*data.encoding"),
        ('age,place,ill\n30,"a\nb",0\n40,\u00fc,0\n'.encode("latin-1"), "row 2 .*data.encoding"),
        (b"age,ill,\n30,0,\n", "column 3"),
        (b"age,ill\n30,0,\n", "line 2"),
        (b"sep=;\nage;ill\n30;0\n", "first line|separator"),
        (b"# exported today\nage,ill\n30,0\n", "comment"),
        (b"age,age,ill\n30,1,0\n", "once"),
        (b"age , age,ill\n30,1,0\n", "once"),
        (b"age,bp,ill\n30,1,0\n40\n", "row 2"),
        (b"age,bp,ill\n30,1,0\nage,bp,ill\n", "row 2"),
    ],
)
def test_files_that_are_written_otherwise_are_refused_with_the_place(tmp_path, content, place):
    (tmp_path / "t.csv").write_bytes(content)
    for attempt in (
        lambda: read_columns(tmp_path / "t.csv", "ill", "", ""),
        lambda: load(
            "table",
            path=tmp_path / "t.csv",
            target="ill",
            classes=2,
            absent=[1],
            scale="none",
            columns=["age"],
        ),
    ):
        with pytest.raises(FieldError, match=place):
            attempt()


def test_quoted_line_breaks_do_not_shift_what_a_refusal_says(tmp_path):
    (tmp_path / "t.csv").write_text('age,note,ill\n30,"two\nlines",0\nold,one,1\n')
    with pytest.raises(FieldError) as refused:
        load(
            "table", path=tmp_path / "t.csv", target="ill", classes=2, scale="none", columns=["age"]
        )
    assert "row 2" in str(refused.value)
    assert "line" not in str(refused.value).split("column")[0]


def test_what_is_indicated_is_read_off_the_data(tmp_path):
    text, _ = first_config(
        "t", str(table(tmp_path, ["1", "2", ""])), 4, "record", missing="indicator"
    )
    assert "data.missing" in tomllib.loads(text)["read_off"]


def test_the_command_takes_how_numbers_are_written(tmp_path):
    path, out = table(tmp_path, ["1,234", "450", ""], separator=";"), tmp_path / "t.toml"
    given = [
        "--clients",
        "3",
        "--protect",
        "client",
        "--missing",
        "indicator",
        "--decimal",
        ".",
        "--thousands",
        ",",
    ]
    done = CliRunner().invoke(app, ["init", "--data", str(path), *given, str(out)])
    assert done.exit_code == 0, done.output
    data = tomllib.loads(out.read_text())["data"]
    assert (data["thousands"], data["missing"], data["columns"]["v"]) == (
        ",",
        {"v": "indicator"},
        [450, 1234],
    )
