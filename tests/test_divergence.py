"""Divergences: their values, their reductions, and slices of large vocabularies."""

from __future__ import annotations

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from stackelberg.game import divergence
from stackelberg.game.divergence import DIVERGENCES, per_sentence


def logits(*shape: int, seed: int) -> torch.Tensor:
    """Random logits, far from uniform."""
    return 3 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_values_are_scipys() -> None:
    """With the factors that their names say."""
    p, q = logits(7, seed=0), logits(7, seed=1)
    a, b = p.softmax(-1).numpy(), q.softmax(-1).numpy()
    expected = {
        "kl": entropy(a, b),
        "symmetric_kl": entropy(a, b) + entropy(b, a),
        "half_symmetric_kl": (entropy(a, b) + entropy(b, a)) / 2,
        "js": jensenshannon(a, b) ** 2,
        "mse": ((p - q) ** 2).sum().item(),
    }
    assert {name: f(p, q).item() for name, f in DIVERGENCES.items()} == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_far_apart_logits_stay_finite(name: str) -> None:
    """A logit 123 below the others underflows as a probability; log-probabilities do not."""
    p = torch.tensor([[0.0, -123.0, 5.0]], requires_grad=True)
    q = torch.tensor([[-200.0, 3.0, 0.0]], requires_grad=True)
    value = DIVERGENCES[name](p, q).sum()
    (first,) = torch.autograd.grad(value, q, create_graph=True)
    second = torch.autograd.grad(first.square().sum(), [p, q])
    assert value.isfinite() and first.isfinite().all() and all(g.isfinite().all() for g in second)


def test_kl_has_a_hessian_at_equality() -> None:
    """Which a divergence with a detached ratio does not: the follower's whole gradient at small δ comes from it."""
    z = logits(4, seed=0)
    hessian = torch.autograd.functional.hessian(lambda q: DIVERGENCES["kl"](z, q), z)
    p = z.softmax(-1)
    torch.testing.assert_close(hessian, torch.diag(p) - torch.outer(p, p))


@pytest.mark.parametrize("name", DIVERGENCES)
def test_slices_of_positions_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value, first and second derivatives, with garbage at the positions that do not count."""
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    p, q = logits(2, 5, 11, seed=0).requires_grad_(), logits(2, 5, 11, seed=1)
    q[1, 3:] = float("inf")
    q.requires_grad_()
    found = []
    for elements in (2**25, 2 * 11 * 2):
        monkeypatch.setattr(divergence, "SLICE_ELEMENTS", elements)
        values = per_sentence(name, p, q.masked_fill(~mask[..., None], 0.0), mask)
        (first,) = torch.autograd.grad(values.sum(), q, create_graph=True)
        found.append((values.detach(), first.detach(), *torch.autograd.grad(first.sin().sum(), [p, q])))
    for whole, sliced in zip(*found, strict=True):
        torch.testing.assert_close(sliced, whole, rtol=1e-12, atol=1e-14)


def test_half_precision_logits_are_compared_in_float32() -> None:
    """bfloat16 in, float32 out."""
    p, q = logits(2, 1, 5, seed=0).bfloat16(), logits(2, 1, 5, seed=1).bfloat16()
    values = per_sentence("kl", p, q, torch.ones(2, 1, dtype=torch.bool))
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, per_sentence("kl", p.float(), q.float(), torch.ones(2, 1, dtype=torch.bool)))
