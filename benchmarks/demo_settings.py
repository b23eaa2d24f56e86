"""How the settings in `stackelberg.demo` were chosen: six for each method, on letters that are not the demo's.

    python benchmarks/demo_settings.py [--out demo-settings] [--seeds 3] [--jobs 2]

The best mean accuracy is taken. Stopped, the same command goes on.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from stackelberg.demo.folder import STUDY, begin
from stackelberg.demo.plan import study_of
from stackelberg.studies.local import LocalCrew
from stackelberg.studies.result import Result
from stackelberg.studies.running import run
from stackelberg.studies.store import Store

LETTERS = 1  # the seed of these letters; the demo's is 0
SIZES = ("settings.epsilon", "settings.weight")
GRIDS = {
    "plain": [{}],
    "vat": [
        dict(zip(SIZES, each, strict=True)) for each in ((0.1, 1), (0.1, 3), (0.2, 1), (0.2, 3), (0.4, 1), (0.4, 3))
    ],
    "smart": [
        {"settings.epsilon": epsilon, "settings.proximal_weight": mu}
        for epsilon in (0.002, 0.006, 0.02)  # of an ℓ∞ ball
        for mu in (0.1, 1.0)
    ],
    "freelb": [{"settings.epsilon": epsilon} for epsilon in (0.01, 0.02, 0.03, 0.05, 0.1, 0.2)],  # it has no weight
}
GRIDS["salt"] = GRIDS["vat"]


def main() -> None:
    """Train all of them and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo-settings"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    begin(asked.out, LETTERS)
    demo = study_of(asked.out, asked.seeds)
    print(f"{'method':8} {'settings':40} {'accuracy':>9} {'ECE':>6} {'NLL':>6}")
    for method, grid in GRIDS.items():
        named = {
            ", ".join(f"{name.removeprefix('settings.')}={value:g}" for name, value in its.items()): its for its in grid
        }
        study = replace(demo, name=f"settings-{method}", methods={method: {}}, settings=named, baseline=None, shows=())
        store = Store.begin(study, asked.out / f"{STUDY}-{method}")
        run(study, store, LocalCrew(store, jobs=asked.jobs, cpus=1, measures={}))
        for setting in named:
            its = [each for each in store.results() if each.setting == setting and each.state == "finished"]
            print(
                f"{method:8} {setting:40} {_mean(its, 'score'):9.1%} {_mean(its, 'ece'):6.1%} {_mean(its, 'nll'):6.3f}"
            )


def _mean(results: list[Result], name: str) -> float:
    return sum(each.figures[name] for each in results) / len(results)


if __name__ == "__main__":
    main()
