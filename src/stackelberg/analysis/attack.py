"""Attacks by TextAttack, an optional package: does a model survive words that are changed until it gives way?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stackelberg.errors import DataError, MissingPackageError, one_of
from stackelberg.nlu.examples import Examples
from stackelberg.nlu.labels import label_order, named_outputs
from stackelberg.nlu.task import NluTask

if TYPE_CHECKING:
    from stackelberg.nlu.classifier import Classifier

# TextAttack's classes, by the names of its own command
ATTACKS = {
    "textfooler": "TextFoolerJin2019",
    "textbugger": "TextBuggerLi2018",
    "pwws": "PWWSRen2019",
    "bae": "BAEGarg2019",
    "deepwordbug": "DeepWordBugGao2018",
}


@dataclass(frozen=True, slots=True)
class AttackFigures:
    """What came of an attack.

    Args:
        attack: its name.
        rows: that were tried.
        right: how many of them the model got right to begin with; only these are attacked.
        held: how many of those it still gets right.
        queries: mean number of texts that the model was asked about for each attacked row.
    """

    attack: str
    rows: int
    right: int
    held: int
    queries: float

    @property
    def accuracy(self) -> float:
        """Before the attack."""
        return self.right / self.rows

    @property
    def under_attack(self) -> float:
        """Accuracy after it."""
        return self.held / self.rows


def attack(
    classifier: Classifier,
    task: NluTask,
    examples: Examples,
    *,
    name: str = "textfooler",
    rows: int = 100,
    seed: int = 0,
) -> AttackFigures:
    """Attack a model's answers on rows drawn at random.

    Args:
        classifier: a trained one.
        task: what the rows are examples of.
        examples: with labels.
        name: of `ATTACKS`.
        rows: how many to try; all when there are fewer.
        seed: of the draw and of the attack.
    """
    one_of("attack", name, ATTACKS)
    if examples.targets is None or task.kind != "classes":
        raise DataError(f"{task.title}: an attack needs rows with classes")
    try:
        import textattack
    except ModuleNotFoundError as error:
        if error.name != "textattack":
            raise
        raise MissingPackageError(
            "this needs textattack, which is not installed: pip install textattack; where pip finds no versions that "
            "go together (its dependency flair asks for transformers below 5), leave --attack out"
        ) from error
    recipe = getattr(textattack.attack_recipes, ATTACKS[name])
    chosen = _drawn(examples, rows, seed)
    attacker = textattack.Attacker(
        recipe.build(_wrapped(textattack, classifier, task)),
        textattack.datasets.Dataset(_pairs(task, chosen), input_columns=_columns(task), label_names=list(task.labels)),
        textattack.AttackArgs(num_examples=len(chosen), random_seed=seed, disable_stdout=True, silent=True),
    )
    results = list(attacker.attack_dataset())
    kinds = textattack.attack_results
    skipped = sum(isinstance(each, kinds.SkippedAttackResult) for each in results)
    fooled = sum(isinstance(each, kinds.SuccessfulAttackResult) for each in results)
    tried = [each for each in results if not isinstance(each, kinds.SkippedAttackResult)]
    return AttackFigures(
        attack=name,
        rows=len(results),
        right=len(results) - skipped,
        held=len(results) - skipped - fooled,
        queries=sum(each.num_queries for each in tried) / len(tried) if tried else 0.0,
    )


def _wrapped(textattack: Any, classifier: Classifier, task: NluTask) -> Any:
    """The model as TextAttack asks it: texts, or pairs of texts, to logits in the task's order of classes."""
    order = label_order(task, named_outputs(classifier.model.config), trained=True)
    its = dataclasses.replace(classifier, order=order)

    class Wrapper(textattack.models.wrappers.ModelWrapper):  # type: ignore[misc]
        """A `Classifier`."""

        model = classifier.model  # TextAttack looks at its class

        def __call__(self, texts: Sequence[Any], **kwargs: Any) -> Any:
            import torch

            asked = [(each,) if isinstance(each, str) else tuple(each) for each in texts]
            pairs = tuple(each[1] for each in asked) if task.has_pairs else None
            rows = its.encode(Examples(tuple(each[0] for each in asked), pairs))
            return torch.from_numpy(its.outputs(rows)).softmax(dim=1).float()

    return Wrapper()


def _columns(task: NluTask) -> list[str]:
    return ["text", "pair"] if task.has_pairs else ["text"]


def _pairs(task: NluTask, examples: Examples) -> list[tuple[Any, int]]:
    """Input and label of each row, as TextAttack's data sets have them."""
    inputs = examples.texts if examples.pairs is None else zip(examples.texts, examples.pairs, strict=True)
    return list(zip(inputs, map(int, examples.targets or ()), strict=True))


def _drawn(examples: Examples, rows: int, seed: int) -> Examples:
    import random

    if rows < 1:
        raise DataError(f"rows={rows} to attack must be at least 1")
    order = random.Random(seed).sample(range(len(examples)), min(rows, len(examples)))
    return examples.take(order)
