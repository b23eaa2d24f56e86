"""Translation: corpora, models, training with every method, search and scores.

`TranslationRecipe.load("nmt/multi30k-en-de", ["data=..."])`, then `TranslationRun.train(recipe, folder)`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stackelberg.nmt.ctranslate import export as export
    from stackelberg.nmt.ctranslate import load_exported as load_exported
    from stackelberg.nmt.generating import load_translator as load_translator
    from stackelberg.nmt.recipe import TranslationRecipe as TranslationRecipe
    from stackelberg.nmt.run import TranslationRun as TranslationRun
    from stackelberg.nmt.scores import chrf as chrf
    from stackelberg.nmt.scores import paired_bootstrap as paired_bootstrap
    from stackelberg.nmt.scores import sacre_bleu as sacre_bleu
    from stackelberg.nmt.scores import tokenized_bleu as tokenized_bleu
    from stackelberg.nmt.search import Search as Search
    from stackelberg.nmt.search import Translation as Translation
    from stackelberg.nmt.search import Translator as Translator
    from stackelberg.nmt.significance import bootstrap as bootstrap

# Where each public name lives, loaded on first use.
_HOMES = {
    "ctranslate": ["export", "load_exported"],
    "generating": ["load_translator"],
    "recipe": ["TranslationRecipe"],
    "run": ["TranslationRun"],
    "scores": ["chrf", "paired_bootstrap", "sacre_bleu", "tokenized_bleu"],
    "search": ["Search", "Translation", "Translator"],
    "significance": ["bootstrap"],
}

__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
