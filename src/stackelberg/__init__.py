"""Adversarial regularization of language models: SALT and every method it is compared with.

Start at `SALT` (`methods/salt.py`); what it rests on is `game/response.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapters.lightning import GameCallback as GameCallback
    from .adapters.lightning import ReplayedLoader as ReplayedLoader
    from .adapters.lightning import example_numbers as example_numbers
    from .adapters.trainer import AdversarialMixin as AdversarialMixin
    from .adapters.trainer import AdversarialSeq2SeqTrainer as AdversarialSeq2SeqTrainer
    from .adapters.trainer import AdversarialTrainer as AdversarialTrainer
    from .errors import ModelError as ModelError
    from .errors import NonFiniteLossError as NonFiniteLossError
    from .errors import SettingError as SettingError
    from .errors import StackelbergError as StackelbergError
    from .game.game import Game as Game
    from .game.labels import checking_labels as checking_labels
    from .game.report import Report as Report
    from .game.step import TrainingStep as TrainingStep
    from .game.task import Task as Task
    from .methods import METHODS as METHODS
    from .methods import R3F as R3F
    from .methods import SALT as SALT
    from .methods import SMART as SMART
    from .methods import VAT as VAT
    from .methods import Adv as Adv
    from .methods import FreeAT as FreeAT
    from .methods import FreeLB as FreeLB
    from .methods import Plain as Plain
    from .methods import RDrop as RDrop
    from .methods import SALTAdv as SALTAdv
    from .methods import create as create
    from .methods import replayed as replayed

# Where each public name lives. Loaded on first use, so that `import stackelberg` does not import torch.
_HOMES = {
    "adapters.lightning": ["GameCallback", "ReplayedLoader", "example_numbers"],
    "adapters.trainer": ["AdversarialMixin", "AdversarialSeq2SeqTrainer", "AdversarialTrainer"],
    "errors": ["ModelError", "NonFiniteLossError", "SettingError", "StackelbergError"],
    "game.game": ["Game"],
    "game.labels": ["checking_labels"],
    "game.report": ["Report"],
    "game.step": ["TrainingStep"],
    "game.task": ["Task"],
    "methods": [
        "METHODS", "R3F", "SALT", "SMART", "VAT", "Adv", "FreeAT", "FreeLB", "Plain", "RDrop", "SALTAdv", "create",
        "replayed",
    ],
}  # fmt: skip

__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("stackelberg")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
