"""Checks of single values."""

from __future__ import annotations

import math
from numbers import Integral, Real

from ...errors import SettingError


def number(
    name: str, value: object, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> None:
    """Refuse a value that is not a finite number in range."""
    real = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    if not real or not (least <= value <= most and value > above):  # type: ignore[operator]
        bounds = [f"above {above:g}"] * (above > -math.inf) + [f"at least {least:g}"] * (least > -math.inf)
        bounds += [f"at most {most:g}"] * (most < math.inf)
        raise SettingError(f"{name}={value!r} should be a number {' and '.join(bounds)}")


def flag(name: str, value: object) -> None:
    """Refuse a value that is not True or False."""
    if not isinstance(value, bool):
        raise SettingError(f"{name}={value!r} should be True or False")


def whole(name: str, value: object, least: int) -> None:
    """Refuse a value that is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise SettingError(f"{name}={value!r} should be a whole number of at least {least}")
