"""The documentation tells the truth: its examples run, its formulas hold, and new methods are in it by themselves."""

from __future__ import annotations

import doctest
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import zoo
from stackelberg import METHODS, SALT, Game
from stackelberg.errors import StackelbergError
from stackelberg.game.ascent import Adam, build
from stackelberg.game.ball import Ball
from stackelberg.game.follower import Follower, Trajectory
from stackelberg.game.game import Play
from stackelberg.game.round import Round

ROOT = Path(__file__).parent.parent
DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "stackelberg"

# --------------------------------------------------------------------------------------------------
# Examples


def trained() -> dict[str, Any]:
    """A model, its batches, and what a loop has besides."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32, dropout=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = torch.arange(len(batch["labels"]))
    shares = {"total": len(numbers), "ranks": 1, "numbers": numbers}
    return {"model": model, "batch": batch, "loader": [batch], "optimizer": optimizer, "game": SALT(), **shares}


def with_arguments() -> dict[str, Any]:
    """For a Trainer."""
    from transformers import Trainer, TrainingArguments

    names = trained()
    rows = [{name: x[i] for name, x in names["batch"].items()} for i in range(len(names["batch"]["labels"]))]
    arguments = TrainingArguments(output_dir="runs", report_to=[], max_steps=1, disable_tqdm=True, save_strategy="no",
                                  dataloader_pin_memory=False)  # fmt: skip
    return {"model": names["model"], "args": arguments, "data": rows, "SFTTrainer": Trainer}


def with_adapters() -> dict[str, Any]:
    """For LoRA."""
    from peft import LoraConfig, get_peft_model

    base, batch = zoo.build("causal", "llama", dtype=torch.float32)
    return {"base": base, "batch": batch, "LoraConfig": LoraConfig, "get_peft_model": get_peft_model, "SALT": SALT}


# What a page takes for granted; all others need nothing.
GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "index": trained,
    "distributed": trained,
    "trainers": with_arguments,
    "lora": with_adapters,
}
PAGES = sorted(page.stem for page in DOCS.glob("*.md") if "```python\n" in page.read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
@pytest.mark.parametrize("page", PAGES)
def test_a_pages_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, each seeing what those before it defined."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    with torch.random.fork_rng():
        names = GIVEN.get(page, dict)()
        for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            exec(compile(block, f"docs/{page}.md", "exec"), names)


EXAMPLES = sorted(path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))


class Lenient(doctest.OutputChecker):
    """An example that shows no output may have some."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_examples_in_docstrings_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those too that are skipped elsewhere, for want of a model."""
    monkeypatch.chdir(tmp_path)
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(name)
    given = vars(module) | trained() | with_arguments() | {"torch": torch, "SALT": SALT}
    given["module"] = SimpleNamespace(game=SALT())
    runner = doctest.DocTestRunner(Lenient(), verbose=False)
    with torch.random.fork_rng():
        for example in doctest.DocTestFinder().find(module, globs=given):
            for line in example.examples:
                if line.options.pop(doctest.SKIP, False):
                    line.want = ""  # a figure of somebody's own model
            runner.run(example)
    assert runner.tries > 0 and runner.failures == 0


def test_displayed_formulas_stand_alone() -> None:
    """A `$$` that follows a line of text would be shown as it is."""
    for page in DOCS.glob("*.md"):
        lines = page.read_text(encoding="utf-8").splitlines()
        marks = [i for i, line in enumerate(lines) if line.strip().startswith("$$")]
        assert len(marks) % 2 == 0, page
        for first, last in zip(marks[::2], marks[1::2], strict=True):
            assert not lines[first - 1].strip() and not lines[last + 1].strip(), f"{page}:{first + 1}"


# --------------------------------------------------------------------------------------------------
# Generated pages


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("generated")


def test_every_method_has_its_settings(generated: Any) -> None:
    page = generated.methods_page()
    for name, cls in METHODS.items():
        section = page.partition(f"(method-{name})=")[2].partition("(method-")[0]
        for field in fields(cls):
            if field.init:
                row = next(line for line in section.splitlines() if line.startswith(f"| `{field.name}` |"))
                assert len(row.split("|")[3].strip()) > 1, row  # it is described


@pytest.fixture
def toy() -> Iterator[type[Game]]:
    @dataclass(kw_only=True, eq=False)
    class Toy(SALT):
        """A method that somebody adds.

        Args:
            volume: how loud.
        """

        name: ClassVar[str] = "toy"
        volume: float = 11.0

        def play(self, round: Round) -> Play:
            yield from super().play(round)

    yield Toy
    del METHODS["toy"]


def test_a_new_method_is_there_by_itself(generated: Any, toy: type[Game]) -> None:
    page = generated.methods_page()
    assert "| [`toy`](#method-toy) | `Toy` | A method that somebody adds. |" in page
    assert "| `volume` | `11.0` | how loud. |" in page


def test_the_reference_names_everything_public(generated: Any) -> None:
    import stackelberg

    page = generated.reference_page() + generated.methods_page()
    for name in stackelberg.__all__:
        assert f"stackelberg.{name}" in page or f"`{name}`" in page, name
    assert all(issubclass(getattr(stackelberg, name), StackelbergError) for name in _errors(page))


def _errors(page: str) -> list[str]:
    return re.findall(r"autoexception:: stackelberg\.(\w+)", page)


# --------------------------------------------------------------------------------------------------
# The formulas of docs/mathematics.md

SHAPE = (3, 4, 5)


def pulled(ascent: Any, norm: Any, k: int, eta: float) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...], Any]:
    """(v, g, what the library finds for u, the state, and the state's cotangents) of one step, ε far away."""
    generator = torch.Generator().manual_seed(0)
    delta, g, v = (torch.randn(SHAPE, generator=generator, dtype=torch.float64) for _ in range(3))
    ball = Ball(1e3, norm)
    rule = build(ascent, eta, ball)
    state = tuple(torch.rand(SHAPE, generator=generator, dtype=torch.float64) for _ in rule.init(delta))
    follower = Follower({"x": ball}, {"x": rule}, {"x": torch.ones(*SHAPE[:2], 1, dtype=torch.float64)}, k + 1)
    path = Trajectory([{"x": delta}] * (k + 1), [], [{"x": g}] * (k + 1), [{"x": state}] * (k + 1))
    carried = tuple(torch.randn(SHAPE, generator=generator, dtype=torch.float64) for _ in state)
    a, u, before = follower.pull_back(path, k, {"x": v}, {"x": carried} if state else None)
    assert torch.equal(a["x"], v)  # every rule is δ + step(g)
    return v, g, u["x"], (*state, *carried), before["x"]


def test_pull_backs_are_as_written() -> None:
    eta = 0.7
    v, g, u, _, _ = pulled("sgd", "l2", 0, eta)
    torch.testing.assert_close(u, eta * v)
    v, g, u, _, _ = pulled("normalized", "l2", 0, eta)
    size = g.square().sum((1, 2), keepdim=True).sqrt()
    unit = g / size
    torch.testing.assert_close(u, eta / size * (v - unit * (unit * v).sum((1, 2), keepdim=True)))
    v, g, u, _, _ = pulled("normalized", "linf", 0, eta)
    largest = g.abs().amax((1, 2), keepdim=True)
    at = g.abs() == largest
    along = (v * g).sum((1, 2), keepdim=True) / largest
    torch.testing.assert_close(u, eta / largest * (v - torch.where(at, g.sign() * along, 0)))


def test_adams_pull_back_is_as_written() -> None:
    eta, k = 0.7, 2  # the third step
    w, g, u, (m, q, v_m, v_q), before = pulled("adam", "l2", k, eta)
    b1, b2, root, eps = Adam(eta).beta1, Adam(eta).beta2, Adam(eta).eps_root, Adam(eta).eps
    c1, c2 = 1 - b1 ** (k + 1), 1 - b2 ** (k + 1)
    mean = (b1 * m + (1 - b1) * g) / c1
    r = ((b2 * q + (1 - b2) * g**2) / c2 + root).sqrt()
    rho = r + eps
    A = eta * w / (c1 * rho) + v_m
    B = -eta * w * mean / (2 * c2 * r * rho**2) + v_q
    torch.testing.assert_close(u, (1 - b1) * A + 2 * (1 - b2) * g * B)
    torch.testing.assert_close(before[0], b1 * A)
    torch.testing.assert_close(before[1], b2 * B)


def test_projections_are_as_written() -> None:
    generator = torch.Generator().manual_seed(0)
    y, v = (torch.randn(SHAPE, generator=generator, dtype=torch.float64) for _ in range(2))
    y[0] *= 0.01  # one sentence inside
    radius = 1.5
    y.requires_grad_()
    (w,) = torch.autograd.grad(Ball(radius).project(y), y, v)
    size = y.detach().square().sum((1, 2), keepdim=True).sqrt()
    unit = y.detach() / size
    outside = radius / size * (v - unit * (unit * v).sum((1, 2), keepdim=True))
    torch.testing.assert_close(w, torch.where(size > radius, outside, v))
    (w,) = torch.autograd.grad(Ball(radius, "linf").project(y), y, v)
    torch.testing.assert_close(w, torch.where(y.detach().abs() <= radius, v, 0))
