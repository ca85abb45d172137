"""Inversion game: the server reconstructs the images behind one release of each client.

One round of each setting is played. Each client trains on a few images only, since larger batches reveal less and the
game asks for the worst risk. For scale, noises of known norm (nu times that of the update) are attacked as well. The
last client is not attacked: its images are the server's reference.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import Any, ClassVar, cast

from fedveil.engines import Execution, Federation, Shared
from fedveil.errors import FieldError, require_count
from fedveil.learning import ClientData
from fedveil.methods import GroupPrivacy, Method, Plain
from fedveil_lab.attacks.inversion import (
    INVERSIONS,
    Inversion,
    Inverted,
    ReleaseView,
    compare_inversion,
)
from fedveil_lab.games.game import GAMES, Attacking, Judgement, Refused
from fedveil_lab.grid import Cell, Finished, Store
from fedveil_lab.runs.marks import protects_regions
from fedveil_lab.runs.prepare import Setup, prepare
from fedveil_lab.runs.runner import Progress, Silent

NOISE = (
    0.001,
    0.01,
    0.1,
    1.0,
    3.0,
)  # nu, the noise-to-signal ratios that stand beside the settings
ONE, SEVERAL = (
    ("analytic", "idlg", "cosine"),
    ("spear", "idlg", "cosine", "local-steps", "see-through"),
)
STEP: dict[str, Any] = {"metrics": {}, "noise": {}, "failed": {}, "invalid": {}, "refused": {}}
TRUSTED = "the server is trusted there, and receives what clients trained: what it reads in a model is no breach"


@dataclass(frozen=True, eq=False)
class InversionAudit(Judgement):
    """Result of an inversion game; `inverted` has the images, `promises` the promise of each attacked round."""

    inverted: Inverted | None = None
    pixels: tuple[float, float] = (0.0, 1.0)
    promises: Mapping[str, str] = field(default_factory=dict)


@GAMES.register("inversion")
@dataclass(frozen=True, eq=False)
class InversionGame(Attacking):
    """Inversion game, in which the server reconstructs images from a client's release.

    Parameters
    ----------
    config : Config
        Configuration of one run or of a comparison; only the first round is played.
    compare : bool
        Whether to play every setting of ``[compare]`` instead of the one in ``[privacy]``.
    attacks : tuple of str
        Names from `INVERSIONS`. Default: those that suit the number of images.
    replicates : int
        Largest number of attacked clients; the last client is not attacked.
    images : int
        Images on which each attacked client trains.
    double : bool
        Whether clients train and send in float64. Attacks that solve equations need it to be exact.
    """

    images: int = 1
    double: bool = False

    name: ClassVar[str] = "inversion"
    known: ClassVar[Collection[str]] = INVERSIONS

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("--images", self.images)

    def question(self) -> dict[str, Any]:
        asked = {
            "attacks": list(self.chosen),
            "clients": self.replicates,
            "images": self.images,
            "noise": list(NOISE),
        }
        if self.double:
            asked["precision"] = "float64"
        return asked

    def usual(self) -> Sequence[str]:
        """List the attacks that fit the number of images."""
        if self.images == 1:
            return ONE
        return SEVERAL

    @cached_property
    def setups(self) -> list[Setup]:
        """Make the setup of each setting, all with the same data."""
        return [prepare(planned.config) for planned in self.settings]

    @cached_property
    def runs(self) -> list[Cell]:
        """Make a one-round run for each setting and each noise; releases stay in memory, in the probe."""
        played: list[tuple[str, Setup, Method | None]] = []
        for planned, setup in zip(self.settings, self.setups, strict=True):
            played.append((planned.label, setup, None))
        for nu in NOISE:
            noise = Method(f"nu = {nu:g}", GroupPrivacy(noise_multiplier=nu), Plain())
            played.append((noise.name, self.setups[0], noise))
        reference = self.setups[0].dealt.clients[-1].x
        cells = []
        for label, setup, method in played:
            once = setup.config.model_copy(update={"rounds": 1})
            make = partial(self._federation, setup, method)
            cells.append(Cell(label, once, (ReleaseView(reference, self._pixels),), make=make))
        return cells

    def cells(self) -> Sequence[Cell]:
        return self.runs

    def check(self) -> list[str]:
        """Refuse clients with too few images, and training that the attacks cannot simulate."""
        setup = self.setups[0]
        if (
            setup.dealt.dataset.task != "classification"
            or len(setup.dealt.dataset.input_shape) != 3
        ):
            raise FieldError(
                "data.name", self.config.data.name, "inversion is of classified images"
            )
        if len(setup.dealt.clients) < 2:
            raise FieldError(
                "data.clients", 1, "the last client's images are the server's reference: at least 2"
            )
        for i, client in enumerate(self._clients[:-1][: self.replicates]):
            if client.examples < self.images:
                raise FieldError(
                    "--images", self.images, f"client {i} has {client.examples} examples"
                )
        # an optimiser that cannot be simulated is refused before anything is written
        Store(None).run(self.runs[:1], together=True)
        notes = []
        for planned, defended in zip(self.settings[1:], self.setups[1:], strict=True):
            if defended.method.client.trust == "central":
                notes.append(f"{planned.label}: {TRUSTED}")
        return notes

    def judge(self, finished: Finished) -> InversionAudit:
        return self.judge_telling(finished, Silent())

    def judge_telling(self, finished: Finished, progress: Progress) -> InversionAudit:
        """Attack the releases of each setting, and report progress after each."""
        views = {cell.label: cast(ReleaseView, cell.probes[0]) for cell in self.runs}
        releases = {label: view.released[:-1][: self.replicates] for label, view in views.items()}
        attacks: list[Inversion] = [INVERSIONS[name]() for name in self.chosen]
        undefended = self.settings[0].label
        steps, done = len(attacks) * sum(map(len, releases.values())), count(1)

        def told(text: str) -> None:
            progress.advance({**STEP, "round": next(done), "text": text})

        progress.begin("reconstructing", 0, steps)
        try:
            inverted = compare_inversion(releases, attacks, undefended=undefended, told=told)
        finally:
            progress.end()
        promises = {}
        for cell in self.runs:
            summary = finished.outcomes[cell.key].summary
            promises[cell.label] = str(summary.values["guarantee"])
        refused = [Refused(attack, "all", reason) for attack, reason in inverted.refused.items()]
        values = {
            "name": self.config.name,
            **self.question(),
            "seed": self.config.seed,
            "undefended": undefended,
            "promises": promises,
        }
        notes = [f"{r.attack} was not run: {r.reason}" for r in refused]
        invalid = sorted({v.attack for v in inverted.verdicts if v.valid is False})
        if invalid:
            notes.append(
                f"fails without a defence, and says nothing about one: {', '.join(invalid)}"
            )
        return InversionAudit(
            inverted.verdicts, refused, values, notes, inverted, self._pixels, promises
        )

    def _federation(self, setup: Setup, method: Method | None) -> Federation:
        """Make a federation whose clients train on a few images; `method` replaces the method for runs with plain noise."""
        learner = setup.learner
        execution = Execution(learner=learner, single_examples=True)
        changes: dict[str, Any] = {}
        if method is not None:
            changes["method"] = method
        if self.double:  # by a learner of its own, for layers of that type
            changes |= {"model": deepcopy(learner.model).double(), "local": learner.local}
            start, public = setup.starts.double(), setup.dealt.public
            changes["shared"] = Shared(initial=start, public_data=public, region=learner.region)
            execution = Execution(single_examples=True)
        return setup.made(
            clients=self._clients, clients_per_round=None, execution=execution, **changes
        )

    @cached_property
    def _clients(self) -> list[ClientData]:
        """Make clients that train on a few images; their other images are held out.

        All settings have the same images. If one protects regions, all have its marks, so that errors are given for
        what is marked and for the rest.
        """
        few, clients = self.images, []
        marked = [setup for setup in self.setups if protects_regions(setup.method)]
        for c in (marked or self.setups)[0].dealt.clients:
            x, masks, rest_x, rest_y = c.x, c.masks, None, None
            if self.double:
                x = x.double()
            if masks is not None:
                masks = masks[:few]
            if c.examples > few:
                rest_x, rest_y = x[few:], c.y[few:]
            clients.append(ClientData(x[:few], c.y[:few], rest_x, rest_y, masks=masks))
        return clients

    @property
    def _pixels(self) -> tuple[float, float]:
        if float(self.setups[0].dealt.dataset.x.min()) < 0:
            return -1.0, 1.0
        return 0.0, 1.0
