"""The methods of the field, one file each, and how to make one by its name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..errors import SettingError, nearest, one_of
from ..game.game import Game
from .adv import Adv
from .freeat import FreeAT, replayed
from .freelb import FreeLB
from .plain import Plain
from .r3f import R3F
from .rdrop import RDrop
from .salt import SALT
from .salt_adv import SALTAdv
from .smart import SMART
from .vat import VAT

METHODS = Game.registry  # name → class; a new method adds itself by having a name

__all__ = [
    "METHODS", "R3F", "SALT", "SMART", "VAT", "Adv", "FreeAT", "FreeLB", "Plain", "RDrop", "SALTAdv", "create",
    "replayed",
]  # fmt: skip


# What papers and other libraries call our settings.
SYMBOLS = {
    "alpha": "weight",
    "lambda_s": "weight",
    "eps": "epsilon",
    "eta": "step_size",
    "lr": "step_size",
    "sigma": "init_std",
    "K": "steps",
    "k": "steps",
    "mu": "proximal_weight",
    "beta": "momentum",
}


def create(name: str, **settings: Any) -> Game:
    """The method of that name with these settings, refusing by name what it does not know.

    Example:
        >>> create("salt", weight=2.0, steps=2).settings["steps"]
        2
    """
    if name not in METHODS and name.lower() in METHODS:
        raise SettingError(f"method={name!r} is not known (did you mean {name.lower()!r}?)")
    one_of("method", name, METHODS)
    method = METHODS[name]
    known = [f.name for f in fields(method) if f.init]
    for setting in settings:
        if setting not in known:
            meant = f" (it is called {SYMBOLS[setting]!r} here)" if setting in SYMBOLS else nearest(setting, known)
            raise SettingError(f"method {name!r} has no setting {setting!r}{meant}; it has {', '.join(known)}")
    return method(**settings)
