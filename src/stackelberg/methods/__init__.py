"""The methods of the field, one file each, and how to make one by its name.

A file that is put here is found by itself. A package of somebody else's has its methods found if it says where they
are, as an entry point of the group `stackelberg.methods`.
"""

from __future__ import annotations

import warnings
from dataclasses import fields
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
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

METHODS = Game.registry  # name → class; a method adds itself by having a name

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


for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
for _place in entry_points(group="stackelberg.methods"):
    try:
        _place.load()
    except Exception as error:  # of any kind; it is somebody else's
        warnings.warn(f"the methods of {_place.value} are left out: {error!r}", stacklevel=1)
