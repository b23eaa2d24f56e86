"""The perturbation: its ball, its start, and which embeddings it may move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import SettingError, one_of
from ..ball import NORMS, PERS, Ball, Norm, Per, length
from ..game import Game
from ..huggingface import refuse_packed
from ..injection import Deltas
from ..noise import NOISES, NoiseName, unit_noise
from ..round import Round
from ..space import Space, perturbable
from .checks import flag, number, whole


@dataclass(kw_only=True, eq=False)
class Perturbing(Game):
    """A method that moves the word embeddings: where δ lives and where it starts.

    Args:
        epsilon: ε, the ball's radius. Left out, a value that constrains alike under each norm and
            granularity: 1 (ℓ2, sentence), 0.25 (ℓ2, token), 0.02 (ℓ∞).
        norm: of the ball, `"l2"` or `"linf"`.
        per: `"sentence"`: one ball for a sentence's whole perturbation, as in the paper; `"token"`.
        relative: ε, η and σ are multiples of the embeddings' own size (that of the sentence or token in
            the ball's norm for ε and η; the root mean square of a coordinate for σ).
        start_noise: the distribution of δ⁰: `"normal"`, `"uniform"` of the same deviation, or `"zero"`.
        init_std: σ, the standard deviation of each coordinate of δ⁰. Left out, `init_radius` decides.
        init_radius: the expected ‖δ⁰‖ / ε, whatever the sentence's length and the embeddings' width.
        sides: which embeddings are perturbed, of `("source", "target")`; left out, all there are.
        exclude_tokens: ids of tokens that are never perturbed, such as the special ones.
        perturb_prompt: whether a causal model's prompt (label −100) is perturbed.
    """

    default_epsilons: ClassVar[dict[tuple[str, str], float]] = {
        ("l2", "sentence"): 1.0,
        ("l2", "token"): 0.25,
        ("linf", "sentence"): 0.02,
        ("linf", "token"): 0.02,
    }

    epsilon: float | None = None
    norm: Norm = "l2"
    per: Per = "sentence"
    relative: bool = False
    start_noise: NoiseName = "normal"
    init_std: float | None = None
    init_radius: float = 0.4
    sides: tuple[str, ...] | None = None
    exclude_tokens: tuple[int, ...] = ()
    perturb_prompt: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        one_of("norm", self.norm, NORMS)
        one_of("per", self.per, PERS)
        one_of("start_noise", self.start_noise, NOISES)
        if self.epsilon is not None:
            number("epsilon", self.epsilon, above=0)
        if self.init_std is not None:
            number("init_std", self.init_std, least=0)
        number("init_radius", self.init_radius, least=0)
        flag("relative", self.relative)
        flag("perturb_prompt", self.perturb_prompt)
        if self.sides is not None and (not isinstance(self.sides, tuple | list) or not self.sides):
            raise SettingError(f"sides={self.sides!r} should be a tuple of names, such as ('source',)")
        for side in self.sides or ():
            one_of("sides", side, ("source", "target"))
        if not isinstance(self.exclude_tokens, tuple | list):
            raise SettingError(f"exclude_tokens={self.exclude_tokens!r} should be a tuple of token ids")
        for token in self.exclude_tokens:
            whole("exclude_tokens", token, 0)

    @property
    def radius(self) -> float:
        """ε."""
        return self.default_epsilons[self.norm, self.per] if self.epsilon is None else self.epsilon

    def check(self, round: Round) -> None:
        """Packed rows, sides that are not there, a start for other sides, masks that cannot be read."""
        super().check(round)
        refuse_packed(round.batch, self.per)
        available = list(round.injection.sides)
        for side in self.sides or ():
            if side not in available:
                raise SettingError(f"sides={self.sides!r}: this model has only {', '.join(available)} embeddings")
        perturbed = [side for side in available if self.moves(side)]
        for side in perturbed:
            round.task.input_mask(side, round.batch)
        given = round.start
        if isinstance(given, Mapping) and set(given) != set(perturbed):
            raise SettingError(f"start names the sides {sorted(given)}, but {sorted(perturbed)} are perturbed")
        if isinstance(given, Tensor) and len(perturbed) != 1:
            raise SettingError(
                f"start is one tensor, but {', '.join(perturbed)} are perturbed; give a mapping from side to tensor"
            )

    def space(self, round: Round) -> dict[str, Space]:
        """Where each perturbed side's δ may be, once the first pass has shown the embeddings."""
        return {side: self.space_of(round, side, x) for side, x in round.embedded.items() if self.moves(side)}

    def moves(self, side: str) -> bool:
        """Whether a side is perturbed."""
        return self.sides is None or side in self.sides

    def space_of(self, round: Round, side: str, x: Tensor) -> Space:
        """One side's space; `x` is what its embedding put out, (B, L, d)."""
        mask = perturbable(round, side, x, self.exclude_tokens, self.perturb_prompt)
        x = x.detach().to(mask.dtype) * mask
        tokens = mask.sum((1, 2), keepdim=True).clamp_min(1) if self.per == "sentence" else 1
        coordinates = tokens * x.shape[-1] if self.norm == "l2" else 1  # how many share one unit of the norm
        unit = length(x, self.norm, self.per) if self.relative else 1.0
        ball = Ball(self.radius * unit, self.norm, self.per)
        if self.init_std is None:
            deviation = self.init_radius * self.radius * unit / self._expected_norm(tokens * x.shape[-1])
        else:
            deviation = self.init_std * (
                length(x, "l2", self.per) / (tokens * x.shape[-1]) ** 0.5 if self.relative else 1
            )
        return Space(mask, ball, unit, coordinates, deviation)

    def _expected_norm(self, coordinates: int | Tensor) -> float | Tensor:
        """The norm of that many independent coordinates of deviation 1, to a few per cent."""
        if self.norm == "l2":
            return coordinates**0.5
        if self.start_noise == "uniform":
            return 3**0.5
        # E max |N| of n normal deviates is close to the quantile of |N| at 0.5264^(1/n).
        quantile = 0.5264 ** (1 / torch.as_tensor(coordinates, dtype=torch.float64))
        return (2**0.5 * torch.erfinv(quantile)).to(torch.float32)

    def start(self, round: Round, spaces: dict[str, Space]) -> Deltas:
        """δ⁰ of every perturbed side, masked but not projected; a given one as it is."""
        return {side: self.start_of(round, side, round.embedded[side], space) for side, space in spaces.items()}

    def start_of(self, round: Round, side: str, x: Tensor, space: Space) -> Tensor:
        """One side's δ⁰."""
        if round.start is not None:
            given = round.start if isinstance(round.start, Tensor) else round.start[side]
            if given.shape != x.shape:
                raise SettingError(
                    f"start of side {side!r} is {tuple(given.shape)}, its embeddings are {tuple(x.shape)}"
                )
            return given.detach().to(space.mask) * space.mask
        drawn = unit_noise(
            self.start_noise,
            x.shape,
            round.row_index(len(x), round.conditions.device),
            seed=self.seed,
            step=round.step,
            side=side,
        )
        return drawn.to(space.mask.dtype) * space.mask * space.deviation
