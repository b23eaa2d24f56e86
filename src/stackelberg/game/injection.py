"""Adding δ to what the embedding modules really put out, in a way that cannot silently fail.

A forward hook leaves the model's own forward pass intact, where `inputs_embeds` would change it (positions of
RoBERTa, pooling of GPT-2, scaling of Marian). Every pass counts that every hook fired exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..errors import ModelError

Deltas = dict[str, Tensor]  # one perturbation (B, L, d) for each perturbed side, in a fixed order
Draw = Callable[[str, Tensor], Tensor | None]  # (side, what its embedding put out) → its δ, made on the spot


class Injection:
    """Hooks on the embedding module of each perturbed side."""

    def __init__(self, sides: Mapping[str, nn.Module]) -> None:
        """`sides` maps a side's name to its module; a module shared by two sides fires for them in order."""
        self.sides = dict(sides)
        self.ran_in: torch.dtype | None = None  # what autocast was casting to where the embeddings last ran

    @contextmanager
    def __call__(
        self, deltas: Mapping[str, Tensor] | Draw | None = None, base: Mapping[str, Tensor] | None = None
    ) -> Iterator[Deltas]:
        """During the pass inside, add each side's δ; yields what each embedding put out, unperturbed.

        `base` is what δ is added to instead of the output itself: an earlier pass's output of the same words.
        """
        seen: Deltas = {}
        fired = dict.fromkeys(self.sides, 0)
        waiting: dict[nn.Module, list[str]] = {}
        for side, module in self.sides.items():
            waiting.setdefault(module, []).append(side)

        def hook(module: nn.Module, args: object, output: Tensor) -> Tensor | None:
            calls = sum(fired[side] for side in waiting[module])
            side = waiting[module][min(calls, len(waiting[module]) - 1)]
            fired[side] += 1
            seen[side] = output
            kind = output.device.type
            self.ran_in = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            delta = deltas(side, output.detach()) if callable(deltas) else (deltas or {}).get(side)
            if delta is None:
                return None
            if _inside_checkpoint():
                raise ModelError(
                    f"the embedding of side {side!r} runs inside activation checkpointing, whose recomputation would "
                    "not see the perturbation; checkpoint the layers, not the embedding"
                )
            if delta.shape != output.shape:
                raise ModelError(
                    f"the perturbation of side {side!r} has shape {tuple(delta.shape)}, but its embedding puts "
                    f"out {tuple(output.shape)}; give `start` that shape"
                )
            x = output if base is None or side not in base else base[side]
            return (x.to(delta.dtype) + delta).to(output.dtype)

        handles = [module.register_forward_hook(hook) for module in waiting]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()
        for side, count in fired.items():
            if count != 1:
                raise ModelError(
                    f"the embedding of side {side!r} ({type(self.sides[side]).__name__}) ran {count} times in one "
                    "pass instead of once, so a perturbation there would not mean what it says; give input_ids rather "
                    "than inputs_embeds, play before the model is compiled, or name the module that runs with "
                    "Task(embeddings={'source': 'path.to.embedding'})"
                )


def find_embedding(model: nn.Module) -> nn.Module:
    """The only `nn.Embedding` of a model that is not from Hugging Face, or an error that says what to do."""
    found = {name: m for name, m in model.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    if len(found) == 1 and isinstance(only := next(iter(found.values())), nn.Embedding):
        return only
    what = f"has {len(found)}: {', '.join(found)}" if found else "has none"
    raise ModelError(
        f"{type(model).__name__} should have one nn.Embedding to perturb but {what}; "
        "say which with Task(embeddings={'source': 'path.to.embedding'})"
    )


def _inside_checkpoint() -> bool:
    """Whether a non-reentrant activation checkpoint is being recorded."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and getattr(hooks[0], "__qualname__", "").startswith("_checkpoint_hook")
