"""Heart disease in four hospitals (UCI), with the rows and columns of FLamby's Fed-Heart-Disease."""

import numpy as np
import torch

from fedveil.data import DataSet
from fedveil.data.labels import natural_clients
from fedveil.data.sets import locate
from fedveil.data.values import pandas_module
from fedveil.data.versions import require_version
from fedveil.errors import FieldError, require_choice
from fedveil_studies.data import FED_HEART

# Centre and spread of the numbers, declared from what is ordinary in adults; nobody's rows are read for them.
SCALES = {
    "age": (55.0, 10.0),
    "trestbps": (130.0, 20.0),
    "chol": (240.0, 60.0),
    "thalach": (140.0, 25.0),
    "oldpeak": (1.0, 1.0),
}
FLAGS = ("sex", "fbs", "exang")
CODES = {"cp": (2, 3, 4), "restecg": (1, 2)}  # indicators; the first code of each column has none
NEEDED = ("centre", *SCALES, *FLAGS, *CODES, "num")
KEPT = {
    "cleveland": 303,
    "hungarian": 261,
    "switzerland": 46,
    "va": 130,
}  # patients, as FLamby counts them
# Checksum of the columns that are needed, of all 920 patients.
CONTENT = "b54f96d76e4cb13061e1a37ddcd723caa718f6776376125288af705fa242ad65"


def load_fed_heart(*, scale: str = "public") -> DataSet:
    """Load heart disease in four hospitals: 740 patients, 13 columns, ill or not.

    FLamby keeps rows with values in ten columns, and drops three columns that are mostly empty (slope, ca, thal). Two
    columns of codes become indicators. The hospitals are the natural clients: Cleveland 303 patients, Hungary 261,
    Switzerland 46, Long Beach (va) 130. A cholesterol of 0 means missing, and stays 0, as there.

    Parameters
    ----------
    scale : {"public", "hospital"}
        "public": subtract a declared centre, divide by a declared spread. "hospital": standardise by mean and deviation
        of each hospital's training rows, as FLamby does. This reads private numbers that no promise covers.

    Raises
    ------
    MissingDataError
        If the file is missing.
    FieldError
        If the file's checksum differs: it is another version of the data set.
    """
    require_choice("data.scale", scale, ("public", "hospital"))
    [[file]] = FED_HEART.files
    path = locate("fed-heart", file, FED_HEART.official)
    try:
        table = pandas_module().read_csv(path, usecols=list(NEEDED))
        columns = {"centre": table["centre"].astype(str)}
        for name in NEEDED[1:]:
            columns[name] = table[name].astype(float)
    except (OSError, ValueError) as error:
        accepted = f"its file {file} cannot be used ({error}); it needs {FED_HEART.official}"
        raise FieldError("data.name", "fed-heart", accepted) from error
    require_version("fed-heart", file, columns, CONTENT, FED_HEART.official)
    table = table.dropna()
    numbers = [(table[name] - centre) / spread for name, (centre, spread) in SCALES.items()]
    flags = [table[name] for name in FLAGS]
    codes = []
    for name, known in CODES.items():
        codes += [table[name] == code for code in known]
    inputs = [np.asarray(column, dtype=np.float32) for column in (*numbers, *flags, *codes)]
    local: tuple[int, ...] = ()
    if scale == "hospital":
        local = tuple(range(len(inputs)))
    owner, owners = natural_clients("centre", table["centre"].to_numpy(dtype=np.str_), len(table))
    return DataSet(
        name="fed-heart",
        x=torch.from_numpy(np.stack(inputs, axis=1)),
        y=torch.from_numpy((table["num"] > 0).to_numpy(dtype=np.int64)),
        classes=2,
        class_names=("well", "ill"),
        owner=owner,
        owners=owners,
        local_columns=local,
        note="740 of the 920 patients, as FLamby keeps them; a cholesterol of 0 means missing.",
        licence=FED_HEART.licence,
    )
