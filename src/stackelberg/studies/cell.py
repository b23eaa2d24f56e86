"""One run of a study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stackelberg.nlu.recipe import Recipe
from stackelberg.nmt.recipe import TranslationRecipe

Kind = Literal["nlu", "nmt"]
AnyRecipe = Recipe | TranslationRecipe


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a study.

    Args:
        id: the key of its recipe, which its folder is named by: equal recipes are one run.
        method: its name.
        task: its name in the study.
        setting: its name in the study; empty where there is one only, or where settings make no difference to the
            method.
        seed: the recipe's.
        recipe: what is trained.
    """

    id: str
    method: str
    task: str
    setting: str
    seed: int
    recipe: AnyRecipe

    @property
    def kind(self) -> Kind:
        """`nlu`, a `Run`, or `nmt`, a `TranslationRun`."""
        return "nmt" if isinstance(self.recipe, TranslationRecipe) else "nlu"

    @property
    def name(self) -> str:
        """In a sentence."""
        setting = f", {self.setting}" if self.setting else ""
        return f"{self.method} on {self.task}{setting}, seed {self.seed}"
