"""The figures: learning curves, parameter studies, scores and probing accuracies over seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stackelberg.analysis.figure_style import MOST, PANEL
from stackelberg.analysis.learning_curves import Curve, at_common_steps, curves_figure
from stackelberg.analysis.statistics import spread
from stackelberg.analysis.sweeps import sweep_figure
from stackelberg.analysis.violins import violin_figure
from stackelberg.nmt.run import TranslationRun
from stackelberg.reports.document import Block, Gallery, Picture, Section
from stackelberg.reports.evidence import Evidence
from stackelberg.runs.records import read_records
from stackelberg.studies.arms import Arm, unvaried

LOSSES = {
    "training loss": ("game/task_loss", "loss"),
    "validation loss": ("dev/loss", "dev/nll", "dev/mse"),
    "validation score (%)": ("dev/score", "dev/bleu"),
}
PROBING = "probing/"
SETTING = re.compile(r"([^\s,=]+)\s*=\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\b", re.IGNORECASE)
SYMBOLS = {"epsilon": "ε", "steps": "K", "weight": "α", "init_std": "σ", "step_size": "η"}
UPRIGHT = 5  # names that have room beside each other
FEW = 3  # seeds; fewer have no shape to show


def drawings(evidence: Evidence, arms: Sequence[Arm]) -> Section | None:
    """The section; None where there is nothing to draw."""
    galleries: list[Block] = [
        gallery
        for gallery in (_sweeps(evidence, arms), _curves(unvaried(arms)), _violins(unvaried(arms)), _probing(arms))
        if gallery is not None
    ]
    return Section("figures", "Figures", galleries) if galleries else None


def _sweeps(evidence: Evidence, arms: Sequence[Arm]) -> Gallery | None:
    """Every numeric setting that a method has several values of."""
    lines: dict[tuple[str, str, str], dict[str, dict[float, list[float]]]] = {}
    titles = {arm.task: arm.title for arm in arms}
    labels = {arm.task: _score_label(arm) for arm in arms}
    for arm in arms:
        if (found := SETTING.findall(arm.setting)) and len(found) == 1:
            name, value = found[0]
            rest = SETTING.sub("", arm.setting).strip(" ,")
            line = lines.setdefault((arm.task, name, rest), {}).setdefault(arm.method, {})
            line[float(value)] = [each.score for each in arm.runs]
    flat: dict[str, dict[str, list[float]]] = {}
    for arm in arms:
        if not arm.setting:
            flat.setdefault(arm.task, {})[arm.method] = [each.score for each in arm.runs]
    pictures = []
    along = {show.along for show in evidence.shows if show.what == "sweep" and show.along}
    for (task, name, rest), its in lines.items():
        if max(map(len, its.values())) < 2:
            continue
        axis = next(iter(along)) if len(along) == 1 else SYMBOLS.get(name, name)
        where = f"{titles[task]}{', ' * bool(rest)}{rest}"
        pictures.append(
            Picture(
                name=f"sweep-{task}-{name}-{rest}",
                alt=f"{labels[task][:1].upper()}{labels[task][1:]} on {where} along {axis}. {_words_of_lines(its)}",
                caption="Means and standard deviations over seeds; values stand at equal distances.",
                draw=partial(sweep_figure, its, along=axis, label=labels[task], title=where, flat=flat.get(task, {})),
            )
        )
    return (
        Gallery("Parameter studies", "The score along one setting, as in the paper's Figure 1.", pictures)
        if pictures
        else None
    )


def _curves(arms: Sequence[Arm]) -> Gallery | None:
    pictures = []
    for task in dict.fromkeys(arm.task for arm in arms):
        its = [arm for arm in arms if arm.task == task][:MOST]
        records = {arm.name: [read_records(each.run.folder) for each in arm.runs] for arm in its}
        for what, names in LOSSES.items():
            for name in names:
                scale = 100 if name == "dev/score" else 1
                curves: Mapping[str, list[Curve]] = {
                    method: [
                        [(one["step"], scale * one[name]) for one in run if one.get(name) is not None] for run in runs
                    ]
                    for method, runs in records.items()
                }
                curves = {method: found for method, found in curves.items() if len(at_common_steps(found)[0]) > 1}
                if curves:
                    pictures.append(_curve(task, its[0].title, what, curves))
                    break
    about = (
        "By optimizer step, as in the paper's Figure 3: a line is the mean over seeds, its band their range. The "
        "training loss is the task's own, without the regularizer, on batches as they come."
    )
    return Gallery("Learning curves", about, pictures) if pictures else None


def _curve(task: str, title: str, what: str, curves: Mapping[str, Sequence[Curve]]) -> Picture:
    ends = {name: at_common_steps(its)[1][:, -1].mean() for name, its in curves.items()}
    return Picture(
        name=f"{what.partition(' (')[0].replace(' ', '-')}-{task}",
        alt=f"{what.capitalize()} on {title} by step; at the end "
        + ", ".join(f"{name} {value:.3g}" for name, value in ends.items())
        + ".",
        caption="",
        draw=lambda: curves_figure(curves, label=what, title=title),
    )


def _violins(arms: Sequence[Arm]) -> Gallery | None:
    pictures = []
    for task in dict.fromkeys(arm.task for arm in arms):
        its = [arm for arm in arms if arm.task == task and len(arm.runs) >= FEW][:MOST]
        if its:
            values = {arm.name: [each.score for each in arm.runs] for arm in its}
            pictures.append(_violin(f"scores-{task}", its[0].title, values, _score_label(its[0])))
    about = "A point is a seed, a line the mean; scales do not begin at 0: they show spread, not size."
    return Gallery("Scores over seeds", about, pictures) if pictures else None


def _probing(arms: Sequence[Arm]) -> Gallery | None:
    names = dict.fromkeys(
        name for arm in arms for each in arm.runs for name in each.figures if name.startswith(PROBING)
    )
    pictures = []
    for name in names:
        values = {
            arm.name: [each.figures[name] for each in arm.runs if name in each.figures]
            for arm in arms
            if any(name in each.figures for each in arm.runs)
        }
        title = name.removeprefix(PROBING).upper()
        pictures.append(_violin(name.replace("/", "-"), title, values, "accuracy (%)"))
    about = (
        "Accuracy of linear heads on frozen encoders, as in the paper's Figure 4: a point is a run, the mean of its "
        "draws."
    )
    return Gallery("Probing", about, pictures) if pictures else None


def _violin(name: str, title: str, values: Mapping[str, Sequence[float]], label: str) -> Picture:
    means = ", ".join(f"{method} {spread(its).text(100)}" for method, its in values.items())
    return Picture(
        name=name,
        alt=f"Violins of {label} on {title}: {means}.",
        caption="",
        draw=lambda: _one_panel(violin_figure({title: values}, label=label), len(values)),
    )


def _one_panel(figure: Any, names: int) -> Any:
    """As large as every other figure of the page; many names stand aslant."""
    figure.set_size_inches(*PANEL)
    if names > UPRIGHT:
        for name in figure.axes[0].get_xticklabels():
            name.set(rotation=30, ha="right", rotation_mode="anchor")
    return figure


def _score_label(arm: Arm) -> str:
    """Of an axis."""
    run = arm.runs[0].run
    if isinstance(run, TranslationRun):
        return "BLEU of tokens" if run.recipe.score == "tokenized" else "sacreBLEU"
    return "score (%)"


def _words_of_lines(lines: Mapping[str, Mapping[float, Sequence[float]]]) -> str:
    return " ".join(
        f"{method}: " + ", ".join(f"{spread(line[value]).text(100)} at {value:g}" for value in sorted(line)) + "."
        for method, line in lines.items()
    )
