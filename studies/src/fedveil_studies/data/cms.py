"""CMS tables of American hospitals' charges (group-privacy paper), with hospitals as natural clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedveil.data import DataSet, SourceInfo
from fedveil.data.labels import natural_clients
from fedveil.data.sets import locate
from fedveil.data.values import pandas_module
from fedveil.data.versions import require_version
from fedveil.errors import FieldError, nearest, require_choice, require_positive
from fedveil_studies.data import CMS_INPATIENT, CMS_OUTPATIENT

# Declared, public bounds of the places: all fifty states lie inside, so that scaling needs nobody's rows.
LONGITUDE, LATITUDE = (-180.0, -60.0), (15.0, 75.0)


@dataclass(frozen=True)
class _Table:
    name: str
    info: SourceInfo
    service: str  # column whose first word is the code of a service
    charges: str
    cases: str  # public number of treated cases; a file may lack it

    @property
    def columns(self) -> list[str]:
        return [self.service, "provider_id", self.charges, "avg_total_payments"]


INPATIENT = _Table("cms-inpatient", CMS_INPATIENT, "drg", "avg_covered_charges", "total_discharges")
OUTPATIENT = _Table(
    "cms-outpatient", CMS_OUTPATIENT, "apc", "avg_submitted_charges", "outpatient_services"
)
# Checksums of the columns that are needed, by file.
CONTENTS = {
    "cms_inpatient_drg100_fy2011.csv.gz": "5781aa64cd420389671bb99aa83f701ecf15ae3552c1ce378f03e16bd09c5923",
    "cms_outpatient_apc30_cy2011.csv.gz": "7f014e08b99eb42ca78100852448aa15b50690d227720534891b617a04ed20f4",
    "cms_providers_geo.csv.gz": "54669220247055924bdf778815ab7c3ea3b78c2c2cf51e71bdd11d73e08ee812",
}
_PLACES = "the table of providers with their ZIP code's coordinates: columns provider_id, zip_lon, zip_lat"

# What most hospitals offer. Inpatient, the paper's four conditions: pneumonia, kidney and urinary tract infections,
# heart failure, digestive disorders.
FOUR_DRGS = ("194", "690", "292", "392")
FOUR_APCS = ("0267", "0269", "0336", "0265")


def load_cms_inpatient(
    *, services: Sequence[str] = FOUR_DRGS, target: str = "payments", unit: float = 10_000.0
) -> DataSet:
    """Load inpatient charges: predict the cost of a service from its kind and its hospital's place.

    There is one example per hospital and service; x is (index of the service, longitude, latitude), each scaled to [0,
    1] by public constants. With the four services of the paper 3,151 hospitals offer at least one, 2,964 at least three
    (``min_size = 3``, the nearest to the paper's 2,947, for which it gives no rule) and 2,738 all.

    Parameters
    ----------
    services : sequence of str
        DRG codes in the order of their index; empty for all 100.
    target : {"payments", "charges"}
        Average total payments, or average covered charges.
    unit : float
        Dollars per unit of y, and so of the errors.

    Raises
    ------
    MissingDataError
        If a file is missing.
    """
    return _load(INPATIENT, services, target, unit)


def load_cms_outpatient(
    *, services: Sequence[str] = FOUR_APCS, target: str = "payments", unit: float = 1_000.0
) -> DataSet:
    """Load outpatient charges in the same form as :func:`load_cms_inpatient`.

    Parameters
    ----------
    services : sequence of str
        APC codes in the order of their index; empty for all 30.
    target : {"payments", "charges"}
        Average total payments, or average submitted charges.
    unit : float
        Dollars per unit of y.
    """
    return _load(OUTPATIENT, services, target, unit)


def _load(table: _Table, services: Sequence[str], target: str, unit: float) -> DataSet:
    require_choice("data.target", target, ("payments", "charges"))
    require_positive("data.unit", unit)
    [(file,), (places,)] = table.info.files
    rows = _read(table.name, file, table.info.official, table.columns, table.cases)
    codes = rows[table.service].map(
        {text: text.split()[0] for text in rows[table.service].unique()}
    )
    known = sorted(codes.unique().tolist())
    chosen = list(services) or known
    for service in chosen:
        if service not in known or chosen.count(service) > 1:
            raise FieldError(
                "data.services", service, f"must be a code, once; {nearest(service, known)}"
            )
    rows = rows[codes.isin(chosen)].assign(code=codes)
    rows = rows.sort_values(["provider_id", "code"], kind="stable")
    owner, owners = natural_clients(
        "provider_id", rows["provider_id"].to_numpy(dtype=np.str_), len(rows)
    )
    longitude, latitude = _places(table.name, places, owners)
    attributes = {"longitude": torch.from_numpy(longitude), "latitude": torch.from_numpy(latitude)}
    if table.cases in rows:
        cases = np.bincount(
            owner.numpy(),
            weights=rows[table.cases].to_numpy(dtype=np.float64),
            minlength=len(owners),
        )
        attributes["cases"] = torch.from_numpy(cases)
    index = rows["code"].map({code: i for i, code in enumerate(chosen)}).to_numpy(dtype=np.float64)
    whose = owner.numpy()
    x = np.stack(
        [
            index / max(len(chosen) - 1, 1),
            (longitude[whose] - LONGITUDE[0]) / (LONGITUDE[1] - LONGITUDE[0]),
            (latitude[whose] - LATITUDE[0]) / (LATITUDE[1] - LATITUDE[0]),
        ],
        axis=1,
    )
    if target == "payments":
        column = "avg_total_payments"
    else:
        column = table.charges
    y = rows[column].to_numpy(dtype=np.float64) / unit
    return DataSet(
        name=table.name,
        x=torch.from_numpy(x.astype(np.float32)),
        y=torch.from_numpy(y.astype(np.float32)),
        owner=owner,
        owners=owners,
        attributes=attributes,
        note=f"Target: {column}, in units of {unit:,g} dollars; {len(chosen)} services. Year 2011.",
        licence=table.info.licence,
    )


def _places(
    name: str, file: str, owners: Sequence[str]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return longitude and latitude of hospitals in degrees; as in the paper, those of their ZIP codes."""
    table = _read(name, file, _PLACES, ["provider_id", "zip_lon", "zip_lat"])
    places = table.set_index("provider_id").reindex(list(owners))
    unknown = places.index[places["zip_lon"].isna()]
    if len(unknown):
        raise FieldError(file, unknown[0], "this provider has charges, but no coordinates")
    longitude, latitude = (
        places[c].to_numpy(dtype=np.float64, copy=True) for c in ("zip_lon", "zip_lat")
    )
    return longitude, latitude


def _read(name: str, file: str, official: str, columns: Sequence[str], cases: str = "") -> Any:
    numeric = {
        c: "float64" for c in (*columns, cases) if c.startswith(("avg_", "zip_")) or c == cases
    }
    path, pd = locate(name, file, official), pandas_module()
    try:
        if cases in pd.read_csv(path, nrows=0):
            known = [*columns, cases]
        else:
            known = list(columns)
        rows = pd.read_csv(path, usecols=known, dtype={**dict.fromkeys(columns, str), **numeric})
    except (OSError, ValueError) as error:
        raise FieldError(
            "data.name", name, f"its file {file} cannot be used ({error}); it needs {official}"
        ) from error
    require_version(name, file, dict(rows.items()), CONTENTS[file], official)
    missing = np.argwhere(rows.isna().to_numpy())
    if len(missing):
        row, column = missing[0].tolist()
        raise FieldError(
            f"{file}, row {row + 1}, column {rows.columns[column]}", None, "must not be empty"
        )
    return rows
