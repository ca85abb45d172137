"""Region game: how many glyphs of the marked content come back from a client's releases.

Each attacked client trains on one image. The server knows all of it but the marked content, labels too: at region level
nothing else is protected. It searches that content in the release of the first round, in that of the last, and in all
together, by two searches each. The figure is the best of these answers, chosen by the truth, which no attacker has: no
defence looks better than it is. A blanked region reveals nothing, so its figure shows what this choice and luck are
worth.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from typing import Any, ClassVar, cast

from torch import Tensor

from fedveil.engines import Execution, Federation, Seen
from fedveil.errors import FieldError, require_count
from fedveil.learning import blanked, marks_of
from fedveil_lab.attacks import Verdict
from fedveil_lab.attacks.inversion.glyphs import GlyphReading
from fedveil_lab.attacks.inversion.knowledge import Captured, Marking, ReleaseView
from fedveil_lab.attacks.inversion.rounds import SEARCHES, Releases, require_rounds
from fedveil_lab.attacks.observation import ThreatModel
from fedveil_lab.attacks.statistics import mean_interval
from fedveil_lab.attacks.verdict import beats_guessing
from fedveil_lab.config.course import Setting
from fedveil_lab.config.tables import ConfigError
from fedveil_lab.config.variants import configure
from fedveil_lab.games.game import GAMES, VANILLA, Attacking, Judgement, Planned, settings_of
from fedveil_lab.games.inversion import STEP
from fedveil_lab.games.region_images import MarkedImages, images_of
from fedveil_lab.grid import Cell, Finished, Store
from fedveil_lab.runs.marks import protects_regions
from fedveil_lab.runs.prepare import Setup, prepare
from fedveil_lab.runs.runner import Progress, Silent

UNDEFENDED, BLANKED, REGION, RECORD = "no defence", "blanked", "region level", "record level"
FEDRE: Mapping[str, Mapping[str, float]] = {
    "FedRE, printed epsilon of 50": {"epsilon": 50.0},
    "FedRE, noise .1 of the clip": {"noise_to_clip": 0.1},
}
KNOWS_ALL_ELSE = ThreatModel(
    "server that knows all but the marked content",
    frozenset({"client models", "training", "labels", "reference", "unmarked"}),
)


class EveryRelease:
    """Probe that keeps what the server receives in every round; see `ReleaseView`."""

    name = "releases of every round"
    figures: Collection[str] = ()

    def __init__(self, reference: Tensor, pixels: tuple[float, float]) -> None:
        self._view = ReleaseView(reference, pixels)
        self.rounds: list[list[Captured]] = []

    def __call__(self, seen: Seen) -> dict[str, float]:
        self._view(seen)
        if seen.broadcast.public.round == 1:
            self.rounds = []
        self.rounds.append(self._view.released)
        return {}


@GAMES.register("region")
@dataclass(frozen=True, eq=False)
class RegionGame(Attacking):
    """Region game, in which the server reads the marked content of images off a client's releases.

    Parameters
    ----------
    config : Config
        Configuration of a run at region level; all its rounds are played.
    compare : bool
        Whether to play every setting of ``[compare]``. Otherwise region level is played beside record level and FedRE,
        at its printed epsilon and at noise under which it trains. No defence and a blanked region are always played.
    attacks : tuple of str
        Searches, ``"distance"`` and ``"direction"``; both by default.
    replicates : int
        Largest number of attacked clients; the images of the others are public.
    glyph : str, optional
        Rows and columns of a glyph in pixels, such as ``"10x7"``, the default; smaller where less is marked.
    steps : int
        Largest number of steps of a search.

    Raises
    ------
    FieldError
        If the configuration does not protect regions of images.
    """

    replicates: int = 3
    glyph: str | None = None
    steps: int = 400

    name: ClassVar[str] = "region"
    known: ClassVar[Collection[str]] = SEARCHES

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("steps", self.steps)
        size_of(self.glyph)

    def question(self) -> dict[str, Any]:
        asked: dict[str, Any] = {"attacks": list(self.chosen), "clients": self.replicates}
        return asked | {"rounds": self.config.rounds, "glyph": self.glyph, "steps": self.steps}

    @cached_property
    def settings(self) -> list[Planned]:
        """List no defence, a blanked region, and the defences."""
        plain, *own = settings_of(self.config, self.compare)
        planned = [Planned(UNDEFENDED, plain.config), Planned(BLANKED, plain.config)]
        if self.compare:
            return planned + [one for one in own if one.config.privacy.method != VANILLA]
        config = own[0].config
        planned += self._fedre[0]
        record = Setting.model_validate({"unit": "record", "blank": 0.0})
        planned.append(Planned(REGION, config))
        return [*planned, Planned(RECORD, configure(config, RECORD, record))]

    @cached_property
    def setups(self) -> list[Setup]:
        """Make the setup of each setting, all with the same data."""
        return [prepare(planned.config) for planned in self.settings]

    @cached_property
    def images(self) -> MarkedImages:
        """Choose the attacked and the public images."""
        marked = prepare(settings_of(self.config, False)[1].config)
        return images_of(marked.dealt.clients, self.replicates, size_of(self.glyph))

    @cached_property
    def runs(self) -> list[Cell]:
        """Make the run of each setting; releases stay in memory, in the probe."""
        cells = []
        for planned, setup in zip(self.settings, self.setups, strict=True):
            make = partial(self._federation, setup, planned.label == BLANKED)
            probe = EveryRelease(self.images.public, self._range)
            cells.append(Cell(planned.label, planned.config, (probe,), make=make))
        return cells

    def cells(self) -> Sequence[Cell]:
        return self.runs

    def check(self) -> list[str]:
        """Refuse what is no image, what protects no region, and training that a search cannot simulate."""
        privacy = self.config.privacy
        if privacy.options.get("unit") != "region":
            accepted = 'the game is about unit = "region", in [privacy]'
            raise FieldError("privacy.unit", privacy.options.get("unit"), accepted)
        dataset = self.setups[0].dealt.dataset
        if len(dataset.input_shape) != 3 or dataset.task == "regression":
            accepted = "the game is of images with classes, or with a class for each pixel"
            raise FieldError("data.name", self.config.data.name, accepted)
        for planned, setup in zip(self.settings, self.setups, strict=True):
            trust = setup.method.client.trust
            if planned.config.privacy.method != VANILLA and trust != "local":
                accepted = "the server reads what a client sends alone: sums and trusted servers are left out"
                raise FieldError(f"{planned.label}: trust", trust, accepted)
        # training that cannot be simulated is refused before anything is written
        Store(None).run(self.runs[:1], together=True)
        notes = []
        if not self.compare and self._fedre[1]:
            notes.append(f"FedRE is not played: {self._fedre[1]}")
        return notes

    def judge(self, finished: Finished) -> Judgement:
        return self.judge_telling(finished, Silent())

    def judge_telling(self, finished: Finished, progress: Progress) -> Judgement:
        """Search the marked content in the releases of each setting, and report progress after each."""
        answers = self._answers(progress)
        undefended = answers[UNDEFENDED]
        verdicts = []
        for label, found in answers.items():
            verdicts.append(self._verdict(label, found, undefended))
        promises = {}
        for cell in self.runs:
            promises[cell.label] = str(finished.outcomes[cell.key].summary.values["guarantee"])
        by_answer = {}
        for label, found in answers.items():
            by_answer[label] = {name: reading.share for name, reading in found.items()}
        rows, columns = self.images.glyph
        values = {"name": self.config.name, **self.question(), "seed": self.config.seed}
        values |= {"glyph": f"{rows}x{columns}", "promises": promises, "answers": by_answer}
        notes = [
            f"{len(self.images.true.windows)} glyphs of {rows}x{columns} pixels in {len(self.images.clients)} images; "
            f"{len(self.images.others.windows)} public glyphs could be named, too.",
            "read: the best of all answers, chosen by the truth; blanked shows what luck reads; blind: naming the "
            "commonest glyph.",
        ]
        for label, promise in promises.items():
            if label not in (UNDEFENDED, BLANKED):
                notes.append(f"{label}: {promise}")
        if verdicts[0].valid is False:
            notes.append("fails without a defence, and says nothing about one")
        return Judgement(verdicts, values=values, notes=notes)

    def _answers(self, progress: Progress) -> dict[str, dict[str, GlyphReading]]:
        """Search in every setting; readings by setting and answer."""
        last, views = self.config.rounds, {"round 1": [0]}
        if last > 1:
            views |= {f"round {last}": [last - 1], "all rounds": list(range(last))}
        steps = len(self.runs) * len(views) * len(self.chosen)
        done, answers = count(1), dict[str, dict[str, GlyphReading]]()
        progress.begin("reading", 0, steps)
        try:
            for cell, setup in zip(self.runs, self.setups, strict=True):
                answers[cell.label] = {}
                differences = protects_regions(setup.method)
                for view, rounds in views.items():
                    for search in self.chosen:
                        reading = self._read(cell, rounds, search, differences)
                        answers[cell.label][f"{search}, {view}"] = reading
                        text = f"{search}, {view}, {cell.label}"
                        progress.advance({**STEP, "round": next(done), "text": text})
        finally:
            progress.end()
        return answers

    def _read(
        self, cell: Cell, rounds: Sequence[int], search: str, differences: bool
    ) -> GlyphReading:
        found = []
        for partition in range(len(self.images.clients)):
            releases = self._releases(cell, rounds, partition, differences)
            require_rounds(releases, KNOWS_ALL_ELSE)
            found.append(SEARCHES[search](releases, self.steps, self.config.seed))
        return self.images.read(found)

    def _releases(
        self, cell: Cell, rounds: Sequence[int], partition: int, differences: bool
    ) -> Releases:
        """Return some rounds' releases of an attacked client, with what the server knows."""
        probe = cast(EveryRelease, cell.probes[0])
        client = self.images.clients[partition]
        hidden = blanked(client, self._blank)
        marking = Marking(marks_of(client), self._blank, differences, hidden.x, hidden.y)
        releases = []
        for number in rounds:
            one = probe.rounds[number][partition]
            labels = one.data.y
            releases.append((one.received, replace(one.known, labels=labels, marking=marking)))
        return releases

    def _verdict(
        self, label: str, found: Mapping[str, GlyphReading], undefended: Mapping[str, GlyphReading]
    ) -> Verdict:
        answer = max(found, key=lambda name: found[name].share)
        best = max(undefended.values(), key=lambda reading: reading.share)
        gained = [share - best.blind for share in self.images.shares(best)]
        reading = found[answer]
        return Verdict.of(
            mean_interval(self.images.shares(reading), shares=True),
            attack=answer,
            setting=label,
            figure="share of an image's glyphs that are read",
            n=len(self.images.clients),
            replication="image",
            without_defence=mean_interval(self.images.shares(best)).point,
            valid=beats_guessing(mean_interval(gained), 0.0),
            threat=KNOWS_ALL_ELSE.who,
            details={
                "read": float(reading.read.sum()),
                "glyphs": float(len(reading.read)),
                "blind": reading.blind,
            },
        )

    def _federation(self, setup: Setup, hidden: bool) -> Federation:
        """Make a federation of the attacked clients; `hidden` blanks what is marked before training."""
        clients = list(self.images.clients)
        if hidden:
            clients = [replace(blanked(one, self._blank), masks=one.masks) for one in clients]
        execution = Execution(learner=setup.learner, single_examples=True)
        return setup.made(clients=clients, clients_per_round=None, execution=execution)

    @cached_property
    def _fedre(self) -> tuple[list[Planned], str]:
        """Make FedRE's settings with the clip of region level, or say why they cannot be played."""
        config, made = self.config, list[Planned]()
        for label, noise in FEDRE.items():
            clip = config.privacy.options.get("clip", 1.0)
            options = {"method": "fedre", "clip": clip, **noise}
            try:
                configured = configure(config, label, Setting.model_validate(options))
            except ConfigError as error:
                return [], str(error)
            made.append(Planned(label, configured))
        return made, ""

    @property
    def _blank(self) -> float:
        """Value of a blanked coordinate."""
        return float(self.config.privacy.options.get("blank", 0.0))

    @property
    def _range(self) -> tuple[float, float]:
        """Least and largest value of an input, as far as public images show it."""
        low = min(0.0, float(self.images.public.min()))
        return low, max(1.0, float(self.images.public.max()))


def size_of(glyph: str | None) -> tuple[int, int] | None:
    """Return rows and columns of a glyph such as ``"10x7"``.

    Raises
    ------
    FieldError
        For another form, or a side of less than 2 pixels.
    """
    if glyph is None:
        return None
    rows, _, columns = glyph.partition("x")
    if not (rows.isdecimal() and columns.isdecimal()) or min(int(rows), int(columns)) < 2:
        raise FieldError("--glyph", glyph, "must be rows x columns in pixels, such as 10x7")
    return int(rows), int(columns)
