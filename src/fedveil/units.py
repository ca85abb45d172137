"""Who or what is protected, in the words that people use for it."""

from collections.abc import Collection

# Each word has one meaning. A word that may mean less than it seems to (visit, case, household) is left out: it is
# refused, so that nobody is promised less than was asked for.
WORDS = {
    "client": """client hospital site silo clinic institution institute centre center party partner organisation
organization company bank provider practice laboratory lab krankenhaus klinik klinikum standort zentrum einrichtung""",
    "person": """person people patient subject individual user participant human member customer citizen proband mensch
patientin teilnehmer""",
    "record": """record row image sample example instance picture photo observation datapoint zeile bild datensatz
beispiel""",
    "nothing": "nothing none nobody no off nichts",
}
_MEANING = {word: unit for unit, words in WORDS.items() for word in words.split()}


def unit_meant(word: object) -> str:
    """The unit that a word means, in singular or plural, "-level" or not; an empty text for anything else."""
    if not isinstance(word, str):
        return ""
    plain = word.strip().lower().removesuffix("level").rstrip(" -_")
    plain = plain.replace(" ", "").replace("_", "").replace("-", "")
    plurals = (plain.removesuffix("s"), plain.removesuffix("es"), plain.removesuffix("en"), plain.removesuffix("n"))
    singulars = (plain, *plurals, f"{plain.removesuffix('ies')}y" if plain.endswith("ies") else plain)
    return next((_MEANING[one] for one in singulars if one in _MEANING), "")


def accepted_units(units: Collection[str]) -> str:
    """Name units with some of the words for each."""
    return "; ".join(f"{unit} ({', '.join(WORDS[unit].split()[1:5])}, ...)" for unit in units)
