"""Units of privacy (client, record, person), and everyday words for them."""

from collections.abc import Collection

UNITS = ("client", "record", "person")  # that numbers alone plan, and a gate asks for

# Each word has one meaning. A word that may mean less than it seems to (visit, case, household) is refused, so that
# nobody is promised less than was asked for.
WORDS = {
    "client": """client hospital site silo clinic institution institute centre center party partner organisation
organization company bank provider practice laboratory lab krankenhaus klinik klinikum standort zentrum einrichtung""",
    "person": """person people patient subject individual user participant human member customer citizen proband mensch
patientin teilnehmer""",
    "record": """record row image sample example instance picture photo observation datapoint zeile bild datensatz
beispiel""",
    "nothing": "nothing none nobody no off nichts",
}
_ENDINGS = {
    "": "",
    "s": "",
    "es": "",
    "en": "",
    "n": "",
    "ies": "y",
}  # of plurals, with those of the singulars
_MEANING: dict[str, str] = {}
for _unit, _words in WORDS.items():
    _MEANING |= dict.fromkeys(_words.split(), _unit)


def unit_meant(word: object) -> str:
    """Return the unit for a word such as "patients" or "record-level"; "" for unknown words."""
    if not isinstance(word, str):
        return ""
    plain = word.strip().lower().removesuffix("level").rstrip(" -_")
    plain = plain.replace(" ", "").replace("_", "").replace("-", "")
    for plural, singular in _ENDINGS.items():
        if plain.endswith(plural):
            meant = _MEANING.get(plain.removesuffix(plural) + singular)
            if meant is not None:
                return meant
    return ""


def accepted_units(units: Collection[str]) -> str:
    """List units with some of the words for each, for refusals."""
    said = []
    for unit in units:
        examples = ", ".join(WORDS[unit].split()[1:5])
        said.append(f"{unit} ({examples}, ...)")
    return "; ".join(said)
