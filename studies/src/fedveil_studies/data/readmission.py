"""Stays of diabetic patients in 130 American hospitals (UCI), and whether they were back within 30 days."""

from typing import Any

import numpy as np
import torch

from fedveil.data import DataSet
from fedveil.data.sets import locate
from fedveil.data.values import pandas_module
from fedveil.data.versions import require_version
from fedveil.errors import FieldError, require_choice, require_count
from fedveil_studies.data import READMISSION

# Checksum of the columns that are needed, of all 101,766 stays of 71,518 patients.
CONTENT = "d3353f3b31e62843fa4fe9b20ad9773a8a45dae40646ee13cdb04d3eab0f7723"
# Centre and spread of the numbers, declared from what is ordinary and from what the set's own paper prints. Counts of
# earlier visits end at 5: who came 40 times would else be eight times as far away.
NUMBERS = {
    "time_in_hospital": (4.0, 3.0),
    "num_lab_procedures": (40.0, 20.0),
    "num_procedures": (1.0, 2.0),
    "num_medications": (15.0, 8.0),
    "number_diagnoses": (7.0, 2.0),
}
VISITS, MOST_VISITS = ("number_outpatient", "number_emergency", "number_inpatient"), 5
# Indicators: columns and the texts or codes that have one. What is not named, and what is missing, has none.
CODES: dict[str, tuple[str, ...]] = {
    "race": ("AfricanAmerican", "Hispanic", "Asian", "Other"),
    "gender": ("Male",),
    "admission_type_id": ("1", "2", "3"),
    "admission_source_id": ("1", "4", "5", "6", "7"),
    "discharge_disposition_id": ("2", "3", "4", "5", "6", "22", "23"),
    "max_glu_serum": ("Norm", ">200", ">300"),
    "A1Cresult": ("Norm", ">7", ">8"),
    "metformin": ("Steady", "Up", "Down"),
    "insulin": ("Steady", "Up", "Down"),
    "change": ("Ch",),
    "diabetesMed": ("Yes",),
}
# Chapters of ICD-9 by the first three digits of the main diagnosis, as in Strack et al. 2014 (10.1155/2014/781670).
CHAPTERS = {
    "circulatory": ((390, 459), (785, 785)),
    "respiratory": ((460, 519), (786, 786)),
    "digestive": ((520, 579), (787, 787)),
    "diabetes": ((250, 250),),
    "injury": ((800, 999),),
    "musculoskeletal": ((710, 739),),
    "genitourinary": ((580, 629), (788, 788)),
    "neoplasms": ((140, 239),),
}
# Who died or went to a hospice does not come back.
GONE = ("11", "13", "14", "19", "20", "21")
NEEDED = ("patient_nbr", "age", *NUMBERS, *VISITS, *CODES, "diag_1", "readmitted")


def load_readmission(*, person: str = "", most: int = 0, part: str = "") -> DataSet:
    """Load hospital stays of diabetic patients, to predict readmission within 30 days.

    Each stay is one example; stays that ended in death or a hospice are left out. The data do not name hospitals.

    Parameters
    ----------
    person : {"", "patient"}
        ``"patient"``: a stay belongs to the patient, and all of one patient go to one client.
    most : int
        Number of stays per patient, the first ones; 0: all.
    part : {"", "tuning", "rest"}
        All patients; a fifth of them, on whom settings may be chosen; or the other patients.

    Raises
    ------
    MissingDataError
        If the file is missing.
    FieldError
        If the file cannot be read, or its checksum differs.
    """
    require_choice("data.person", person, ("", "patient"))
    require_choice("data.part", part, ("", "tuning", "rest"))
    most = require_count("data.most", most, least=0)
    [[file]] = READMISSION.files
    path = locate("readmission", file, READMISSION.official)
    try:
        table = pandas_module().read_csv(
            path, usecols=list(NEEDED), dtype=str, keep_default_na=False
        )
    except (OSError, ValueError) as error:
        accepted = f"its file {file} cannot be used ({error}); it needs {READMISSION.official}"
        raise FieldError("data.name", "readmission", accepted) from error
    columns = {name: table[name] for name in NEEDED}
    require_version("readmission", file, columns, CONTENT, READMISSION.official)
    table = table[~table["discharge_disposition_id"].isin(GONE)]
    if part:
        tuning = table["patient_nbr"].isin(tuning_patients(table["patient_nbr"].unique()))
        if part == "rest":
            tuning = ~tuning
        table = table[tuning]
    if most:
        table = table[table.groupby("patient_nbr").cumcount() < most]
    x = np.stack(columns_of(table), axis=1)
    x /= np.linalg.norm(x, axis=1, keepdims=True)  # of each stay alone, so that no gradient is long
    group = torch.from_numpy(
        np.unique(table["patient_nbr"].to_numpy(dtype=np.int64), return_inverse=True)[1]
    )
    return DataSet(
        name="readmission",
        x=torch.from_numpy(x),
        y=torch.from_numpy((table["readmitted"] == "<30").to_numpy(dtype=np.int64)),
        classes=2,
        class_names=("not within 30 days", "within 30 days"),
        group=group.reshape(-1) if person else None,
        note="Stays of 130 hospitals that are not named: silos are made of whole patients, drawn at random.",
        licence=READMISSION.licence,
    )


def tuning_patients(patients: Any) -> Any:
    """Return a fixed fifth of the patients."""
    order = np.random.default_rng(0).permutation(np.sort(patients))
    return order[: len(order) // 5]


def columns_of(table: Any) -> list[Any]:
    """Convert text columns to the inputs [N] of each kind, float32."""

    def numbers(name: str) -> Any:
        return table[name].to_numpy(dtype=np.float32)

    decade = table["age"].str.extract(r"\[(\d+)-", expand=False).to_numpy(dtype=np.float32)
    found = [(decade - 60) / 15]
    found += [(numbers(name) - centre) / spread for name, (centre, spread) in NUMBERS.items()]
    found += [np.minimum(numbers(name), MOST_VISITS) / MOST_VISITS for name in VISITS]
    for name, codes in CODES.items():
        found += [(table[name] == code).to_numpy() for code in codes]
    chapter = (
        table["diag_1"].str.extract(r"^(\d+)", expand=False).fillna("0").to_numpy(dtype=np.int64)
    )
    for ranges in CHAPTERS.values():
        held = [(low <= chapter) & (chapter <= high) for low, high in ranges]
        found.append(np.any(held, axis=0))
    return [np.asarray(one, dtype=np.float32) for one in found]
