"""An executable specification of SALT, written from the paper's equations and from nothing else.

Everything is unrolled by autograd, sentence by sentence, with no thought for speed or memory. Fast routes are
tested against this file; when they disagree, read the equation in the docstring and decide who is right.

Shapes: B sentences, L tokens on a side (source and target differ), d embedding width, C classes or vocabulary
entries, T output tokens. A *side* is an embedding that is perturbed: one for an encoder or a decoder, two for
both. α is the weight of the divergence, ℓ_v the payoff of the follower, θ the parameters of the leader.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Norm = Literal["l2", "linf"]
Per = Literal["sentence", "token"]
Ascent = Literal["sgd", "normalized", "sign", "adam"]
Response = Literal["differentiated", "detached"]
Logits = Callable[[list[Tensor]], Tensor]  # [δ a side] ↦ f(x + δ, θ), (B, C) or (B, T, C); [] ↦ f(x, θ)
TaskLoss = Callable[[Tensor], Tensor]  # f(x, θ) ↦ L(θ), a scalar, divided by its own denominator
Payoff = Callable[[Tensor, Tensor], Tensor]  # f(x, θ), f(x + δ, θ) ↦ ℓ_v, (B,)


# --------------------------------------------------------------------------------------------------
# Payoffs ℓ_v(x, δ, θ): one number a sentence, summed over its real tokens and divided by nothing.


def per_sentence(point: Payoff, clean: Tensor, perturbed: Tensor, mask: Tensor | None) -> Tensor:
    """ℓ_v,i = Σ_t point(p_it, q_it) over sentence i's real tokens, or its outputs without a mask: (B,)."""
    sentences = []
    for i in range(len(clean)):
        p, q = clean[i], perturbed[i]
        if mask is not None:
            p, q = p[mask[i]], q[mask[i]]
        sentences.append(point(p, q).sum())
    return torch.stack(sentences)


def relative_entropy(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """KL(P ‖ Q) = Σ_k p_k (log p_k - log q_k): (..., C) → (...)."""
    log_p, log_q = p_logits.log_softmax(-1), q_logits.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def to_mixture(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """½ KL(P ‖ M) + ½ KL(Q ‖ M) with M = ½ (P + Q): (..., C) → (...)."""
    log_p, log_q = p_logits.log_softmax(-1), q_logits.log_softmax(-1)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return (0.5 * log_p.exp() * (log_p - log_m) + 0.5 * log_q.exp() * (log_q - log_m)).sum(-1)


def kl(clean: Tensor, perturbed: Tensor, mask: Tensor | None = None) -> Tensor:
    """The paper's KL(f(x) ‖ f(x + δ)), (B,)."""
    return per_sentence(relative_entropy, clean, perturbed, mask)


def symmetric_kl(clean: Tensor, perturbed: Tensor, mask: Tensor | None = None) -> Tensor:
    """KL(f(x) ‖ f(x + δ)) + KL(f(x + δ) ‖ f(x)), factor 1, (B,): twice `kl` near δ = 0."""
    return kl(clean, perturbed, mask) + kl(perturbed, clean, mask)


def half_symmetric_kl(clean: Tensor, perturbed: Tensor, mask: Tensor | None = None) -> Tensor:
    """½ Σ_k (p_k - q_k)(log p_k - log q_k), (B,): R-Drop's factor and, for B6, the released SALT code's."""
    return 0.5 * symmetric_kl(clean, perturbed, mask)


def js(clean: Tensor, perturbed: Tensor, mask: Tensor | None = None) -> Tensor:
    """Jensen-Shannon, ½ KL(P ‖ M) + ½ KL(Q ‖ M), (B,): `kl`/4 near δ = 0, and at most log 2 a token."""
    return per_sentence(to_mixture, clean, perturbed, mask)


def mse(clean: Tensor, perturbed: Tensor, mask: Tensor | None = None) -> Tensor:
    """Σ (f(x) - f(x + δ))² over the outputs, (B,): the paper's regression payoff; a sum, not a mean."""
    return per_sentence(lambda p, q: (p - q) ** 2, clean, perturbed, mask)


def bernoulli(logits: Tensor) -> Tensor:
    """Multi-label logits (B, C) as C two-way distributions (B, C, 2), for any of the divergences above."""
    return torch.stack([logits, torch.zeros_like(logits)], dim=-1)


# --------------------------------------------------------------------------------------------------
# The follower. A ball's tensor is (L, d) per sentence, (d,) per token; padding is 0 in it and counts nowhere.


def each_ball(function: Callable[[Tensor], Tensor], x: Tensor, per: Per) -> Tensor:
    """Apply `function` to every ball of x, (B, L, d) → (B, L, d)."""
    if per == "sentence":
        return torch.stack([function(sentence) for sentence in x])
    return torch.stack([torch.stack([function(token) for token in sentence]) for sentence in x])


def length(ball: Tensor, norm: Norm) -> Tensor:
    """‖ball‖₂ over all its entries, or ‖ball‖_∞ = max |entry|: a scalar without derivative at 0."""
    return ball.square().sum().sqrt() if norm == "l2" else ball.abs().max()


def projected(ball: Tensor, norm: Norm, epsilon: float) -> Tensor:
    """Π: the nearest point with ‖δ‖ ≤ ε: ε δ/‖δ‖₂, or entries cut at ±ε; at ‖δ‖ = ε exactly, the identity."""
    if length(ball.detach(), norm) <= epsilon:
        return ball
    if norm == "l2":
        return epsilon * ball / length(ball, norm)
    return torch.where(ball.abs() <= epsilon, ball, epsilon * ball.sign())


def unit(ball: Tensor, norm: Norm) -> Tensor:
    """g/‖g‖ in the ball's own norm; 0/0 = 0, with derivative 0."""
    return ball / length(ball, norm) if ball.any() else 0 * ball


class Moments(NamedTuple):
    """Adam's state for one side: m, v, each (B, L, d), and the number of steps taken."""

    m: Tensor
    v: Tensor
    steps: int


def adam_step(
    state: Moments, g: Tensor, betas: tuple[float, float], eps: float, eps_root: float
) -> tuple[Tensor, Moments]:
    """m̂/(√(v̂ + eps_root) + eps), with m ← β₁m + (1-β₁)g, v ← β₂v + (1-β₂)g², m̂ = m/(1-β₁ᵏ), v̂ = v/(1-β₂ᵏ).

    An entry whose gradient has been exactly 0 so far (v̂ = 0: padding) takes no step, and has derivative 0.
    """
    k = state.steps + 1
    m = betas[0] * state.m + (1 - betas[0]) * g
    v = betas[1] * state.v + (1 - betas[1]) * g**2
    m_hat, v_hat = m / (1 - betas[0] ** k), v / (1 - betas[1] ** k)
    still = v_hat == 0
    root = torch.where(still, torch.ones_like(v_hat), v_hat + eps_root).sqrt()
    return torch.where(still, torch.zeros_like(g), m_hat / (root + eps)), Moments(m, v, k)


# --------------------------------------------------------------------------------------------------
# The game


class Objective(NamedTuple):
    """F(θ) = task_loss + α · divergence; divergence = Σ_i ℓ_v(x_i, δ_i^K, θ)/N; deltas is δ^K a side."""

    value: Tensor
    task_loss: Tensor
    divergence: Tensor
    deltas: list[Tensor]


def stackelberg_objective(
    logits: Logits,
    task_loss: TaskLoss,
    starts: Sequence[Tensor],
    masks: Sequence[Tensor],
    *,
    payoff: Payoff,
    weight: float,
    epsilon: float,
    steps: int,
    step_size: float,
    norm: Norm,
    per: Per,
    ascent: Ascent,
    normalizer: float,
    detach_target: bool = False,
    response: Response = "differentiated",
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8,
    eps_root: float = 1e-12,
) -> Objective:
    """The leader's objective F; its autograd is the Stackelberg gradient, or VAT's with a detached response.

        F(θ) = L(θ) + (α/N) Σ_i ℓ_v(x_i, δ_i^K(θ), θ)
        δ^k  = Π_{‖·‖ ≤ ε}(δ^{k-1} + step(∂ℓ_v(x, δ^{k-1}, θ)/∂δ^{k-1})),   k = 1 … K

    with step(g) = η g (sgd), η g/‖g‖ (normalized), η sign(g) (sign), η m̂/(√(v̂ + eps_root) + eps) (adam).
    Neither 1/N nor α nor another sentence reaches a sentence's ascent. δ⁰ is masked but not projected, and
    g is masked before anything is made of it.

    starts, masks: δ⁰ (B, L_side, d) and where a perturbation is allowed (B, L_side), one each a side. weight
    is α, steps K, step_size η, normalizer N. `detach_target` makes f(x, θ) a constant for both players.
    """
    clean = logits([])
    target = clean.detach() if detach_target else clean
    allowed = [mask.unsqueeze(-1) for mask in masks]  # (B, L, 1)
    deltas = [(start * real).detach().requires_grad_() for start, real in zip(starts, allowed, strict=True)]
    states = [Moments(torch.zeros_like(delta), torch.zeros_like(delta), 0) for delta in deltas]

    for _ in range(steps):
        ascended = payoff(target, logits(deltas)).sum()  # row i of its gradient is ∂ℓ_v,i/∂δ_i alone
        gradients = torch.autograd.grad(ascended, deltas, create_graph=True)
        for side, gradient in enumerate(gradients):
            g = gradient * allowed[side]
            if ascent == "sgd":
                step = g
            elif ascent == "normalized":
                step = each_ball(partial(unit, norm=norm), g, per)
            elif ascent == "sign":
                step = g.sign()
            elif ascent == "adam":
                step, states[side] = adam_step(states[side], g, betas, eps, eps_root)
            else:
                raise ValueError(f"unknown ascent {ascent!r}")
            ball = partial(projected, norm=norm, epsilon=epsilon)
            deltas[side] = each_ball(ball, deltas[side] + step_size * step, per)
        if response == "detached":  # δ^k is a constant of θ
            deltas = [delta.detach().requires_grad_() for delta in deltas]
            states = [Moments(state.m.detach(), state.v.detach(), state.steps) for state in states]

    loss = task_loss(clean)
    divergence = payoff(target, logits(deltas)).sum() / normalizer
    return Objective(loss + weight * divergence, loss, divergence, [delta.detach() for delta in deltas])


# --------------------------------------------------------------------------------------------------
# What the released code computes instead


class ReleasedGradient(NamedTuple):
    """One tensor a parameter in each list; gradient = copied + leader is what reaches the optimiser."""

    gradient: list[Tensor]
    copied: list[Tensor]
    leader: list[Tensor]


def released_code_gradient(
    logits: Logits,
    task_loss: TaskLoss,
    starts: Sequence[Tensor],
    parameters: Sequence[Tensor],
    *,
    epsilon: float,
    steps: int,
    step_size: float,
    normalizer: float,
    weight: float = 1.0,
    payoff: Payoff = half_symmetric_kl,
) -> ReleasedGradient:
    """What the released SALT code puts in `param.grad`; with ℓ_v half the symmetric KL and f(x, θ) detached:

        copied = (α/N) d ℓ_v(x, δ^K(θ), θ)/dθ,   δ^k = δ^{k-1} + η ∂ℓ_v/∂δ^{k-1}, never projected
        leader = dL/dθ + (α/N) ∂ℓ_v(x, renorm_ε(δ⁰), θ)/∂θ

    against the paper's dL/dθ + (α/N) d ℓ_v(x, δ^K(θ), θ)/dθ. B1, … number the bugs found in it. Its α is
    always 1 (B5), its only ascent sgd, and it has no masks: it perturbs padding and spends norm on it (B14).
    Pass `partial(half_symmetric_kl, mask=…)` for token-level outputs. Unused parameters get zeros.
    """
    clean = logits([])
    target = clean.detach()  # B4: the clean prediction is a constant

    deltas = [start.detach().requires_grad_() for start in starts]
    for _ in range(steps):
        ascended = payoff(target, logits(deltas)).sum()  # B6: ½ symmetric KL where the paper writes KL
        gradients = torch.autograd.grad(ascended, deltas, create_graph=True)
        # B3: no projection
        deltas = [delta + step_size * g for delta, g in zip(deltas, gradients, strict=True)]
    unrolled = weight / normalizer * payoff(target, logits(deltas)).sum()

    # B2: the perturbation is read from the module that `higher` copied, so it is still δ⁰ (renormed), not δ^K
    saved = [torch.renorm(start.detach(), p=2, dim=0, maxnorm=epsilon) for start in starts]
    extra = weight / normalizer * payoff(target, logits(saved)).sum()

    def gradient(of: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(of, list(parameters), retain_graph=True, materialize_grads=True))

    copied = gradient(unrolled)  # B1: this already is the total derivative, leader and interaction …
    leader = gradient(task_loss(clean) + extra)  # … and a second leader term is accumulated on top of it
    return ReleasedGradient([c + e for c, e in zip(copied, leader, strict=True)], copied, leader)


# --------------------------------------------------------------------------------------------------
# A game solved on paper


def closed_form(
    weights: Tensor,
    starts: Tensor,
    *,
    weight: float,
    steps: int,
    step_size: float,
    normalizer: float,
    response: Response = "differentiated",
) -> tuple[Tensor, Tensor]:
    """(α/N) Σ_i ℓ_v(δ_i^K(W)) and its gradient in W, without autograd.

    The game: f(x, W) = W x, ℓ_v = ‖f(x) - f(x + δ)‖² (`mse`), plain sgd, a ball too large to matter.
    With A = WᵀW, ℓ_v(δ) = δᵀAδ has ∂ℓ_v/∂δ = 2Aδ, so δ^K = (I + 2ηA)^K δ⁰ and, since A commutes with itself,

        ℓ_v(δ^K) = tr(S h(A)),   S = δ⁰δ⁰ᵀ,   h(A) = (I + 2ηA)^{2K} A = Σ_j binom(2K, j) (2η)^j A^{j+1}.

    S does not commute with A: d tr(S A^{j+1}) = Σ_{r≤j} tr(A^r S A^{j-r} dA), a term for each place of dA;

        G = Σ_{j=0}^{2K} binom(2K, j) (2η)^j Σ_{r=0}^{j} A^r S A^{j-r}      (symmetric)

    and dA = dWᵀW + WᵀdW turns tr(G dA) into 2 tr(G Wᵀ dW): the gradient is 2WG. With δ^K held constant (VAT)
    the same holds with G = δ^K δ^Kᵀ. weights W: (C, n); starts δ⁰: (B, n), a sentence's embeddings, flat.
    """
    w, n = weights.detach(), weights.shape[1]
    a = w.T @ w  # (n, n)
    growth = torch.linalg.matrix_power(torch.eye(n, dtype=w.dtype) + 2 * step_size * a, steps)
    value, g = w.new_zeros(()), torch.zeros_like(a)
    for start in starts.detach():
        delta = growth @ start  # δ^K, (n,)
        value = value + delta @ a @ delta
        if response == "detached":
            g = g + torch.outer(delta, delta)
            continue
        s = torch.outer(start, start)
        for j in range(2 * steps + 1):
            coefficient = math.comb(2 * steps, j) * (2 * step_size) ** j
            for r in range(j + 1):
                left, right = torch.linalg.matrix_power(a, r), torch.linalg.matrix_power(a, j - r)
                g = g + coefficient * left @ s @ right
    return weight / normalizer * value, weight / normalizer * 2 * w @ g
