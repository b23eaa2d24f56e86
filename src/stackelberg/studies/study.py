"""A study: methods × tasks × settings × seeds, every one of them a run with a recipe of its own.

A file has these names, all but `methods` and `tasks` optional:

    title: GLUE, development sets
    methods: [plain, smart, salt]          # or name: {settings.weight: 2.0}, fields of that method's recipes
    tasks: [rte, sst-2]                    # recipes by name or file, or name: {fields of that task's recipes};
                                           # `recipe: nmt/tiny` among the fields names the recipe they change
    settings: {K=1: {settings.steps: 1}}   # named variants: fields of their recipes; one without a name if left out
    grid: {settings.steps: [1, 2]}         # or settings from all combinations; `recipe`: the grid in the tasks' recipes
    seeds: 3                               # how many, or which
    recipe: {epochs: 3}                    # fields of every recipe
    baseline: plain                        # that differences are taken from; `plain`, or the first method
    metrics: [score]                       # the table's columns for a task; left out, its score, or a corpus's BLEU
    measures: {probing: {tasks: [cr]}}     # what is measured of a run when it is trained; see `measures`
    shows: [{what: table, mirrors: 'tb:glue-results'}]
    cpus: 1                                # that a run computes with: other numbers of threads give other digits
    gpus: 1                                # that a run asks for; one where there are any, if left out
    alone: false                           # true where runs are timed: never two at once on one device
    remarks: [what a reader must know]
    smoke: {...}                           # any of these names, for the smallest size

Fields of a recipe are those of `Recipe` or `TranslationRecipe`, the method's as `settings.name`. Where several places
give one, the setting's is stronger than the method's, and so on down: task, recipe. A method that lacks a setting
which another one of the study has is played without it, and once for settings that then do not differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stackelberg.errors import one_of
from stackelberg.game.settings.checks import flag, number, whole
from stackelberg.studies.errors import StudyError

if TYPE_CHECKING:
    from stackelberg.studies.cell import Cell

What = Literal["table", "sweep", "loss", "reliability", "violins", "grid", "cost", "submission"]
SHOWN: tuple[What, ...] = ("table", "sweep", "loss", "reliability", "violins", "grid", "cost", "submission")
OWN_GRID = "recipe"  # the word for the grid that the tasks' recipes have


@dataclass(frozen=True, slots=True)
class Show:
    """A table or figure that a study is made for.

    Args:
        what: `table`: methods × tasks; `sweep`: a metric along the settings, a line a method; `loss`: training and
            validation loss by step; `reliability`: confidence against accuracy, a panel a method; `violins`: of the
            probing accuracies; `grid`: every setting, the best first; `cost`: seconds and memory of a step;
            `submission`: files for the GLUE server.
        metric: a name among a run's figures; the study's first when None.
        mirrors: the label of the paper's table or figure in its source, such as `tb:anli` or `fig:steps`.
        along: what the settings vary, as an axis has it.
        title: above it.
    """

    what: What
    metric: str | None = None
    mirrors: str | None = None
    along: str | None = None
    title: str | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is run and what it shows; the module says what each name means."""

    name: str
    title: str
    methods: Mapping[str, Mapping[str, Any]]
    tasks: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    grid: Mapping[str, Sequence[Any]] | str | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    baseline: str | None = None
    metrics: tuple[str, ...] = ()
    measures: Mapping[str, Any] = field(default_factory=dict)
    shows: tuple[Show, ...] = (Show("table"),)
    cpus: int = 1
    gpus: float | None = None
    alone: bool = False
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check what can be checked without a recipe."""
        from stackelberg.methods import METHODS
        from stackelberg.studies.measures import check_options

        for name, kind in (("methods", "method"), ("tasks", "task"), ("settings", "setting"), ("seeds", "seed")):
            if not getattr(self, name):
                raise StudyError(f"{self.name} has no {name}; give at least one {kind}")
        for method in self.methods:
            one_of("method", method, METHODS)
        for seed in self.seeds:
            whole("seeds", seed, 0)
        if len(set(self.seeds)) < len(self.seeds):
            raise StudyError(f"seeds={list(self.seeds)} must name each once")
        if self.baseline is not None:
            one_of("baseline", self.baseline, self.methods)
        for name in ("name", "title"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise StudyError(f"{name}={getattr(self, name)!r} should be a text")
        for measure, options in self.measures.items():
            check_options(measure, options)
        if self.grid not in (None, OWN_GRID):
            self._check_grid()
        whole("cpus", self.cpus, 1)
        flag("alone", self.alone)
        if self.gpus is not None:
            number("gpus", self.gpus, least=0)
        if self.grid is not None and self.settings != {"": {}}:
            raise StudyError(f"{self.name} has both settings and a grid; give one of them")

    def _check_grid(self) -> None:
        whole = isinstance(self.grid, Mapping) and self.grid
        if not whole or not all(isinstance(values, list) and values for values in self.grid.values()):  # type: ignore[union-attr]
            raise StudyError(
                f"{self.name}: grid={self.grid!r} should be fields, each with a list of values to try, such as "
                "{learning_rate: [1.0e-5, 1.0e-4]}"
            )

    @classmethod
    def load(cls, source: str | Path, overrides: Sequence[str] = (), *, smoke: Path | None = None) -> Study:
        """A shipped study by its name, or a YAML file's.

        Args:
            source: `glue-dev`, or a file.
            overrides: `key=value` as in YAML: a name of the study (`seeds=5`, `methods=[plain,salt]`), a field of
                every recipe (`data=FOLDER`, `settings.weight=2.0`), or with a dot one of a task's or a method's
                (`rte.epochs=5`, `salt.weight=2.0`).
            smoke: the folder that a tiny model and tiny data are written into, for the smallest size.
        """
        from stackelberg.studies.study_file import read

        return cls(**read(source, overrides, smoke))

    def to_yaml(self) -> str:
        """As a file that `load` reads, and which means the same wherever it is read from."""
        from stackelberg.studies.study_file import written

        return written(self)

    def has(self, method: str, task: str, setting: str, seed: int) -> bool:
        """Whether it asks for such a run; its settings are looked at where they have names of their own."""
        named = self.grid is not None or setting in ("", *self.settings)
        return named and method in self.methods and task in self.tasks and seed in self.seeds

    def cells(self) -> list[Cell]:
        """Every run, seed by seed, so that a table can be had early and a slow hour is shared by all methods."""
        from stackelberg.studies.cell import cells_of

        return cells_of(self)
