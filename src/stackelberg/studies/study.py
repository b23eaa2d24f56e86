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
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from stackelberg.errors import one_of
from stackelberg.game.settings.checks import flag, number, whole
from stackelberg.studies.errors import StudyError
from stackelberg.studies.plan import Plan
from stackelberg.studies.shows import Show


@dataclass(frozen=True, kw_only=True)
class Study(Plan):
    """What is run and what it shows; the module says what each name means."""

    title: str
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
        from stackelberg.studies.measures import check_options

        self.check()
        if self.baseline is not None:
            one_of("baseline", self.baseline, self.methods)
        for name in ("name", "title"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise StudyError(f"{name}={getattr(self, name)!r} should be a text")
        for measure, options in self.measures.items():
            check_options(measure, options)
        whole("cpus", self.cpus, 1)
        flag("alone", self.alone)
        if self.gpus is not None:
            number("gpus", self.gpus, least=0)

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

        return cls(**read(source, overrides, smoke, [each.name for each in fields(cls)]))

    def to_yaml(self) -> str:
        """As a file that `load` reads, and which means the same wherever it is read from."""
        from stackelberg.studies.study_file import written

        return written(self)
