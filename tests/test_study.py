"""Studies: what is read, what is refused, and what a folder is worth after a crash."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stackelberg.cli import app
from stackelberg.errors import StackelbergError
from stackelberg.studies.cell import Cell
from stackelberg.studies.checking import check
from stackelberg.studies.crew import Ended
from stackelberg.studies.errors import StudyError
from stackelberg.studies.figures import titles
from stackelberg.studies.local import LocalCrew
from stackelberg.studies.looking import Watcher
from stackelberg.studies.result import finished_figures
from stackelberg.studies.running import CRASHES, Told, run
from stackelberg.studies.smoke import tiny_file
from stackelberg.studies.store import STALE, Store
from stackelberg.studies.study import Study
from stackelberg.studies.study_file import shipped
from stackelberg.studies.summary import as_data, summarize
from stackelberg.studies.summary_words import difference_table, score_table, sentences
from stackelberg.studies.worker import train
from tiny_study import SMALL, figures, study, written

RUNNER = CliRunner()


def fake(cell: Cell, folder: Path) -> None:
    """What a training leaves behind, as far as a store looks at it."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(cell.recipe.to_yaml())
    (folder / "result.json").write_text(json.dumps({"score": 0.5 + 0.1 * cell.seed, "steps": 4}))
    its = {name: getattr(cell, name) for name in ("kind", "method", "task", "setting", "seed")}
    (folder / "cell.json").write_text(json.dumps({**its, "measured": {}, "figures": {}}))


class Here:
    """A crew of this very process, which trains at once; `crash` says of which runs the process would have died."""

    def __init__(self, store: Store, *, really: bool = False) -> None:
        self.store, self.really = store, really
        self.trained: list[str] = []
        self.crash: dict[str, int] = {}
        self.fails: dict[str, str] = {}
        self._over: list[Ended] = []

    @property
    def at_work(self) -> list[str]:
        return [each.cell.id for each in self._over]

    @property
    def has_room(self) -> bool:
        return not self._over

    def begin(self, cell: Cell) -> None:
        if self.crash.get(cell.name, 0):
            self.crash[cell.name] -= 1
            self._over.append(Ended(cell, "crashed", "its process was ended by signal 9 (SIGKILL)"))
        elif cell.name in self.fails:
            self._over.append(Ended(cell, "failed", self.fails[cell.name]))
        else:
            folder = self.store.run_folder(cell.id)
            if self.really:
                train(cell, folder, {}, 1)
            else:
                fake(cell, folder)
            self.trained.append(cell.id)
            self._over.append(Ended(cell, "done"))

    def ended(self, seconds: float) -> list[Ended]:
        over, self._over = self._over, []
        return over

    def stop(self) -> list[Ended]:
        return []

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Store]:
    """An undisturbed study of 3 methods × 2 tasks × 2 seeds."""
    home = tmp_path_factory.mktemp("study")
    its = study(home)
    store = Store.begin(its, home / "out")
    crew = Here(store, really=True)
    run(its, store, crew)
    assert len(crew.trained) == len(set(crew.trained)) == 12
    return its, store


# ---- what a study is ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped())
def test_shipped_studies_are_right(name: str, tmp_path: Path) -> None:
    whole = Study.load(name, ["tasks=rte"] if name == "grid-glue" else [])  # of its 384 runs 48 are enough
    small = Study.load(name, smoke=tmp_path)
    cells, few = whole.cells(), small.cells()
    assert whole.name == name and whole.title and 1 < len(few) <= 12 and len(few) < len(cells)
    assert len({cell.id for cell in cells}) == len(cells)
    assert Study.load(_saved(whole, tmp_path)).cells() == cells
    assert all(str(tmp_path) in cell.recipe.to_yaml() or cell.kind == "nmt" for cell in few)
    assert "its figures mean nothing" in small.remarks[0]


def _saved(its: Study, folder: Path) -> Path:
    (folder / "saved.yaml").write_text(its.to_yaml())
    return folder / "saved.yaml"


def test_cells_are_methods_times_tasks_times_settings_times_seeds(tmp_path: Path) -> None:
    its = Study.load(
        written(
            tmp_path,
            methods={"plain": None, "vat": None, "salt": {"settings.weight": 2.0}},
            tasks=["rte", "sst-2"],
            settings={"K=1": {"settings.steps": 1}, "K=2": {"settings.steps": 2}},
            recipe={"epochs": 2},
        ),
        ["seeds=3,7"],
    )
    cells = its.cells()
    # plain has no K, and is played once for both
    assert len(cells) == 2 * 2 * (2 * 2 + 1)
    assert {cell.setting for cell in cells if cell.method == "plain"} == {""}
    assert {cell.setting for cell in cells if cell.method != "plain"} == {"K=1", "K=2"}
    assert {cell.seed for cell in cells} == {3, 7} and cells[0].seed == cells[len(cells) // 2 - 1].seed == 3
    salt = next(cell for cell in cells if (cell.method, cell.setting) == ("salt", "K=2"))
    assert salt.recipe.settings == {"weight": 2.0, "epsilon": 1.0, "steps": 2} and salt.id == salt.recipe.key()
    assert all(cell.recipe.epochs == 2.0 for cell in cells)


def test_the_command_line_changes_the_study_a_task_a_method_or_all(tmp_path: Path) -> None:
    path = written(tmp_path, tasks={"rte": {"epochs": 9}, "sst-2": {}})
    its = Study.load(
        path, ["methods=plain,salt", "seeds=1", "rte.batch_size=8", "salt.weight=3", "max_length=64", "epochs=4"]
    )
    recipes = {(cell.task, cell.method): cell.recipe for cell in its.cells()}
    assert len(recipes) == 4 and recipes["rte", "plain"].batch_size == 8 and recipes["sst-2", "plain"].batch_size == 32
    assert recipes["rte", "salt"].settings["weight"] == 3 and "weight" not in recipes["rte", "plain"].settings
    # the command line is stronger than a task's own epochs
    assert {recipe.max_length for recipe in recipes.values()} == {64} and recipes["rte", "salt"].epochs == 4.0
    assert list(Study.load(path, ["tasks=[rte]"]).tasks["rte"]) == ["epochs"]


def test_a_grid_is_every_combination(tmp_path: Path) -> None:
    grid = {"learning_rate": [1e-4, 5e-4], "settings.step_size": [1e-5, "learning_rate"]}
    its = Study.load(written(tmp_path, methods=["salt"], tasks=["rte"], seeds=1, grid=grid))
    assert [(cell.recipe.learning_rate, cell.recipe.settings["step_size"]) for cell in its.cells()] == [
        (1e-4, 1e-5), (1e-4, 1e-4), (5e-4, 1e-5), (5e-4, 5e-4),
    ]  # fmt: skip
    assert its.cells()[0].setting == "learning_rate=0.0001 step_size=1e-05"
    assert len(Study.load("grid-glue", ["tasks=rte"]).cells()) == 3 * 4 * 2 * 2  # the paper's own


def test_a_saved_study_finds_its_recipes_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("task: rte\nepochs: 2\n")
    (tmp_path / "other.yaml").write_text("task: sst-2\nepochs: 2\n")
    monkeypatch.chdir(tmp_path)
    its = Study.load(written(tmp_path, tasks={"rte-mine": {"recipe": "mine.yaml"}, "other.yaml": None}))
    cells, saved = its.cells(), _saved(its, tmp_path)
    monkeypatch.chdir("/")
    assert Study.load(saved).cells() == cells and {cell.recipe.epochs for cell in cells} == {2.0}


def test_tasks_of_ones_own_and_translation(tmp_path: Path) -> None:
    rows = tmp_path / "mine.tsv"
    rows.write_text("text\tlabel\na film\tyes\nthe plot\tno\n")
    tasks = {"mine": {"train": str(rows)}, "made-up": {"recipe": "nmt/tiny", "max_steps": 3}, "iwslt14-de-en": None}
    cells = Study.load(written(tmp_path, methods=["plain"], tasks=tasks, seeds=1)).cells()
    assert [(cell.kind, cell.task) for cell in cells] == [
        ("nlu", "mine"), ("nmt", "made-up"), ("nmt", "iwslt14-de-en"),
    ]  # fmt: skip
    assert cells[0].recipe.train == str(rows) and cells[1].recipe.max_steps == 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "overrides", "words"),
    [
        ({"methods": []}, [], "has no methods; give at least one"),
        ({"tasks": None}, [], "has no tasks; give at least one"),
        ({"methods": ["plain", "salty"]}, [], "method='salty' is not known.*did you mean 'salt'"),
        ({"methods": ["plain", "plain"]}, [], "must name each once"),
        ({"metods": ["plain"]}, [], "'metods'; they have .*did you mean 'methods'"),
        ({"tasks": ["rtee"]}, [], "'rtee' is no file, no recipe of ours and no task.*did you mean 'rte'"),
        ({"recipe": {"epoch": 3}}, [], "has no field 'epoch'.*did you mean 'epochs'"),
        ({"recipe": {"settings.epsilonn": 3}}, [], "epsilonn"),
        ({"seeds": 0}, [], "seeds=0 should be how many"),
        ({"seeds": [1, 1]}, [], r"seeds=\[1, 1\] must name each once"),
        ({"baseline": "smart"}, [], "baseline='smart' is not known"),
        ({"measures": {"probbing": {}}}, [], "measure='probbing' is not known.*did you mean 'probing'"),
        ({"measures": {"probing": {}}}, [], r"measures, probing has no tasks; give them"),
        ({"measures": {"probing": {"tasks": ["cr"], "draw": 2}}}, [], "'draw' is not known.*did you mean 'draws'"),
        ({"measures": {"robustness": 3}}, [], "measures, robustness: 3 should be names and values"),
        ({"grid": {"epochs": 3}}, [], "each with a list of values to try"),
        ({"tasks": {"rte": {"recipe": 3}}}, [], "rte: recipe=3 should be the name of a recipe"),
        ({"recipe": {"settings": 3}}, [], "settings=3 should be names and values"),
        ({}, ["metrics=3"], "metrics=3 should be a list of texts"),
        ({"shows": [{"what": "tabel"}]}, [], "what='tabel' is not known.*did you mean 'table'"),
        ({"cpus": 0}, [], "cpus=0 should be a whole number of at least 1"),
        ({"grid": {"epochs": [1]}, "settings": {"a": {}}}, [], "both settings and a grid"),
        ({"grid": "recipe"}, [], "the recipe sst-2 has none|has none; give the values to try"),
        ({"settings": ["a", {"b": 1}]}, [], "should be a list of names"),
        ({}, ["epoch=3"], "'epoch' is no name of a study and no field of a recipe.*did you mean 'epochs'"),
        ({}, ["seed=3"], "seed: a study has several; give seeds="),
        ({}, ["mnli.epochs=3"], "'mnli' is no task and no method of this study"),
        ({}, ["seeds"], "should be key=value"),
        ({}, ["settings=[b]"], "settings='b' is not known"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(changes: Any, overrides: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(StackelbergError, match=words) as caught:
        Study.load(written(tmp_path, **changes), overrides).cells()
    assert "\n" not in str(caught.value)


def test_a_study_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"study 'glue-def' is no file and none of ours.*did you mean 'glue-dev'"):
        Study.load("glue-def")
    with pytest.raises(StudyError, match=r"study .*none\.yaml is not there"):
        Study.load(tmp_path / "none.yaml")


# ---- its folder --------------------------------------------------------------------------------------------------


def test_runs_are_told_as_they_go_and_nothing_is_trained_twice(finished: tuple[Study, Store]) -> None:
    its, store = finished
    assert [each.state for each in store.results()] == ["finished"] * 12
    assert all(each.attempts == 1 and each.figures["steps"] == 4 for each in store.results())
    crew, told = Here(store), []
    run(its, store, crew, told.append)
    assert not crew.trained and not told


def test_seeds_and_methods_are_added_without_repeating_a_run(tmp_path: Path) -> None:
    few = study(tmp_path, methods=["plain"], tasks=["sst-2"], seeds=1)
    store = Store.begin(few, tmp_path / "out")
    run(few, store, Here(store))
    more = study(tmp_path, methods=["plain", "vat"], tasks=["sst-2"], seeds=2)
    store = Store.begin(more, tmp_path / "out")
    crew = Here(store)
    told: list[Told] = []
    run(more, store, crew, told.append)
    assert len(crew.trained) == 3 and [each.done for each in told if each.what == "finished"] == [2, 3, 4]
    assert Store(tmp_path / "out").study.seeds == (0, 1)
    # with fewer again, what is finished stays
    assert len(Store.begin(few, tmp_path / "out").results()) == 4


def test_rows_are_made_again_from_run_folders(finished: tuple[Study, Store]) -> None:
    its, store = finished
    before = figures(store.results())
    store.close()
    (store.folder / "study.sqlite").unlink()
    again = Store(store.folder)
    assert figures(again.results()) == before and {each.state for each in again.results()} == {"finished"}
    crew = Here(again)
    run(its, Store.begin(its, store.folder), crew)
    assert not crew.trained
    (store.folder / "study.sqlite").write_text("no database at all, but a text that is long enough to be read " * 9)
    with pytest.raises(StudyError, match=r"study\.sqlite cannot be used .*; remove it"):
        Store(store.folder)
    (store.folder / "study.sqlite").unlink()
    store._database = Store(store.folder)._database


def test_a_folder_is_believed_over_its_row(tmp_path: Path) -> None:
    its = study(tmp_path, methods=["plain"], tasks=["sst-2"], seeds=2)
    store = Store.begin(its, tmp_path / "out")
    run(its, store, Here(store))
    first, second = store.results()
    (first.folder / "result.json").unlink()  # a row that says finished, and no result
    store._database.execute("UPDATE runs SET state = 'failed', figures = NULL WHERE id = ?", (second.id,))
    again = Store.begin(its, tmp_path / "out")
    assert [each.state for each in again.results()] == ["waiting", "finished"]
    assert again.results()[1].figures == second.figures


def test_a_run_is_claimed_by_one_and_taken_over_when_its_process_is_gone(tmp_path: Path) -> None:
    its = study(tmp_path, methods=["plain"], tasks=["sst-2"], seeds=2)
    one, other = Store.begin(its, tmp_path / "out"), Store.begin(its, tmp_path / "out")
    other.who = "another-host:1:ab"
    cells = its.cells()
    first, second = one.claim(cells), other.claim(cells)
    assert first == cells[0] and second == cells[1] and one.claim(cells) is None and other.claim(cells) is None
    assert [each.who for each in one.results()] == [one.who, "another-host:1:ab"]

    def who(said: str, heartbeat: float) -> None:
        one._database.execute("UPDATE runs SET who = ?, heartbeat = ?", (said, heartbeat))

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host = one.who.partition(":")[0]
    who(f"{host}:{gone.pid}:ab", time.time())  # of this machine, and no such process
    assert one.claim(cells) == cells[0]
    who(f"{host}:{os.getppid()}:ab", time.time())  # alive
    assert one.claim(cells) is None
    who(f"{host}:{os.getpid()}:ab", time.time())  # of this number, and another one
    assert one.claim(cells) == cells[0]
    who("another-host:1:ab", time.time() - STALE - 1)  # of another machine, and silent
    assert one.claim(cells) == cells[0]
    who(one.who, time.time() - STALE - 1)  # this one, which slept
    assert one.claim(cells) is None
    assert one.results()[0].attempts == 4


def test_finished_runs_are_measured_when_that_is_asked_for_later(tmp_path: Path) -> None:
    its = study(tmp_path, methods=["plain"], tasks=["sst-2"], seeds=1)
    store = Store.begin(its, tmp_path / "out")
    run(its, store, Here(store))
    assert store.results()[0].state == "finished"
    measured = Store.begin(replace(its, measures={"robustness": {}}), tmp_path / "out")
    assert [each.state for each in measured.results()] == ["waiting"]
    assert [each.state for each in Store(tmp_path / "out").results()] == ["waiting"]  # whoever looks at it
    assert [each.state for each in Store.begin(its, tmp_path / "out").results()] == ["finished"]


def test_a_run_that_is_called_otherwise_later_is_the_same_run(tmp_path: Path) -> None:
    its = study(tmp_path, methods=["plain", "salt"], tasks=["sst-2"], seeds=1)
    store = Store.begin(its, tmp_path / "out")
    run(its, store, Here(store))
    before = {each.id for each in store.results()}
    steps = its.cells()[1].recipe.settings["steps"] if "steps" in its.cells()[1].recipe.settings else 1
    named = replace(its, settings={"K=1": {"settings.steps": steps}, "K=2": {"settings.steps": steps + 1}})
    again = Store.begin(named, tmp_path / "out")
    found = {(each.method, each.setting): each for each in again.results()}
    assert found.keys() == {("plain", ""), ("salt", "K=1"), ("salt", "K=2")}
    assert {found["plain", ""].id, found["salt", "K=1"].id} == before
    lines = {(line.method, line.setting): line.spreads[0] for line in summarize(named, again).lines}
    assert lines["salt", "K=1"] is not None and lines["salt", "K=2"] is None


def test_a_run_that_another_process_took_over_is_its_own(tmp_path: Path) -> None:
    its = study(tmp_path, methods=["plain"], tasks=["sst-2"], seeds=1)
    store, other = Store.begin(its, tmp_path / "out"), Store.begin(its, tmp_path / "out")
    cell = store.claim(its.cells())
    assert cell is not None
    other.who = "another-host:1:ab"
    store._database.execute("UPDATE runs SET heartbeat = 0, who = 'gone:1:ab'")
    assert other.claim(its.cells()) == cell
    store.release(cell.id)
    store.fail(cell.id, "it came too late")
    store.release_all()
    store.beat([cell.id])
    assert [(each.state, each.who) for each in store.results()] == [("running", other.who)]


def test_another_study_or_other_recipes_are_refused(finished: tuple[Study, Store], tmp_path: Path) -> None:
    its, store = finished
    with pytest.raises(StudyError, match="holds the study tiny, and this is other; give another --out"):
        Store.begin(replace(its, name="other"), store.folder)
    longer = replace(its, tasks={name: {**fields, "max_steps": 9} for name, fields in its.tasks.items()})
    with pytest.raises(StudyError, match=r"plain on sst-2, seed 0 with another recipe \(max_steps is 4 there and 9"):
        Store.begin(longer, store.folder)
    assert Store(store.folder).study == its  # and nothing is changed
    (tmp_path / "file.txt").write_text("mine")
    with pytest.raises(StudyError, match="is not empty and holds no study; give another --out"):
        Store.begin(its, tmp_path)
    with pytest.raises(StudyError, match="is a file where a folder is needed"):
        Store.begin(its, tmp_path / "file.txt")
    with pytest.raises(StudyError, match=r"is no study's folder: it has no study\.yaml"):
        Store(tmp_path)


# ---- running -----------------------------------------------------------------------------------------------------


def test_a_crash_is_tried_again_and_given_up_in_the_end(tmp_path: Path) -> None:
    its = study(tmp_path, methods=["plain"], tasks=["sst-2"], seeds=2)
    store = Store.begin(its, tmp_path / "out")
    crew = Here(store)
    crew.crash = {"plain on sst-2, seed 0": CRASHES - 1, "plain on sst-2, seed 1": CRASHES}
    told: list[Told] = []
    run(its, store, crew, told.append)
    first, second = store.results()
    assert first.state == "finished" and first.attempts == CRASHES and second.state == "failed"
    assert second.error == "given up after 3 crashes: its process was ended by signal 9 (SIGKILL)"
    assert [each.what for each in told].count("crashed") == 2 * (CRASHES - 1)
    assert any("plain on sst-2, seed 1 is left out: given up" in said for said in sentences(summarize(its, store)))
    run(its, store, crew)
    assert len(crew.trained) == 1  # what failed is tried again when asked
    store.forgive()
    run(its, store, crew)
    assert len(crew.trained) == 2


def test_runs_that_fail_alike_stop_the_study(tmp_path: Path) -> None:
    its = study(tmp_path)
    store = Store.begin(its, tmp_path / "out")
    crew = Here(store)
    crew.fails = {cell.name: "data/RTE is not there" for cell in its.cells()}
    with pytest.raises(StudyError, match="3 runs failed alike: data/RTE is not there; mend that, and give the same"):
        run(its, store, crew)
    assert [each.state for each in store.results()].count("failed") == 3


def test_runs_that_fail_alike_once_others_are_finished_do_not(tmp_path: Path) -> None:
    its = study(tmp_path, methods=["plain", "vat"], tasks=["sst-2"], seeds=4)
    store = Store.begin(its, tmp_path / "out")
    crew = Here(store)
    crew.fails = {cell.name: "the loss is not finite" for cell in its.cells() if cell.method == "vat"}
    run(its, store, crew)
    states = [each.state for each in store.results()]
    assert states.count("failed") == 4 and states.count("finished") == 4


def test_ctrl_c_lets_go_of_the_runs(tmp_path: Path) -> None:
    its = study(tmp_path, methods=["plain"], tasks=["sst-2"], seeds=1)
    store = Store.begin(its, tmp_path / "out")

    class Pressed(Here):
        def begin(self, cell: Cell) -> None:
            self._over.append(Ended(cell, "stopped"))
            raise KeyboardInterrupt

        def stop(self) -> list[Ended]:
            return self.ended(0)

    with pytest.raises(KeyboardInterrupt):
        run(its, store, Pressed(store))
    assert [(each.state, each.who) for each in store.results()] == [("waiting", None)]


def test_a_script_without_a_guard_is_told_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, methods=["plain"], tasks=["sst-2"], seeds=2)
    script = tmp_path / "mine.py"
    script.write_text(
        "from stackelberg.studies.local import LocalCrew\n"
        "from stackelberg.studies.running import run\n"
        "from stackelberg.studies.store import Store\n"
        "from stackelberg.studies.study import Study\n"
        f"study = Study.load({str(path)!r}, smoke=__import__('pathlib').Path({str(tmp_path / 'smoke')!r}))\n"
        f"store = Store.begin(study, {str(tmp_path / 'out')!r})\n"
        "run(study, store, LocalCrew(store, jobs=1, cpus=1, measures={}))\n"
    )
    told = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert told.returncode == 1, told.stderr
    assert "mine.py runs a study at its top level" in told.stderr.splitlines()[-1]
    assert "put the call below if __name__ == '__main__':" in told.stderr.splitlines()[-1]
    assert {each.state for each in Store(tmp_path / "out").results()} == {"waiting"}


def killed_study(home: Path, kills: int, draw: random.Random) -> int:
    """A study whose process is killed so often at a time that nobody chose, and what of it was finished by then."""
    path, out = written(home), home / "out"
    command = [sys.executable, "-m", "stackelberg", "study", str(path), "--smoke", "--out", str(out), "--jobs=2", "-q"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    seen: dict[str, tuple[int, int]] = {}
    done = 0
    for _ in range(kills):
        child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        wanted = len(list(out.glob("runs/*/recipe.yaml"))) + 1  # one more run has begun
        while len(list(out.glob("runs/*/recipe.yaml"))) < min(wanted, 12) and child.poll() is None:
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.6))
        child.send_signal(signal.SIGKILL)
        done += child.wait() == -signal.SIGKILL
        seen = {path.parent.name: _written(path) for path in out.glob("runs/*/result.json")} | seen
    its = Study.load(path, smoke=out / "smoke")
    store = Store.begin(its, out)
    assert {each.id for each in store.results() if each.state == "finished"} >= seen.keys()
    crew = Here(store, really=True)
    run(its, store, crew)  # another process, which goes on with what the killed one had
    assert len(crew.trained) == len(set(crew.trained)) <= 12 - len(seen)
    for id_, was in seen.items():
        assert _written(out / "runs" / id_ / "result.json") == was, f"{id_} was done twice"
    return done


def _written(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


def assert_same_table(store: Store, finished: tuple[Study, Store]) -> None:
    _, undisturbed = finished
    assert [each.state for each in store.results()] == ["finished"] * 12
    assert len(list(store.folder.glob("runs/*/result.json"))) == 12
    assert figures(store.results()) == figures(undisturbed.results())
    ours, theirs = (summarize(each.study, each) for each in (store, undisturbed))
    assert score_table(ours) == score_table(theirs) and difference_table(ours) == difference_table(theirs)
    assert sentences(ours) == sentences(theirs)


def test_killed_twice_it_ends_with_the_same_table(finished: tuple[Study, Store], tmp_path: Path) -> None:
    assert killed_study(tmp_path, 2, random.Random(0)) == 2
    assert_same_table(Store(tmp_path / "out"), finished)


@pytest.mark.soak
def test_killed_ten_times_it_ends_with_the_same_table(finished: tuple[Study, Store], tmp_path: Path) -> None:
    assert killed_study(tmp_path, 10, random.Random(1)) >= 8  # the last may come when all is over
    assert_same_table(Store(tmp_path / "out"), finished)


@pytest.mark.soak
def test_a_run_whose_process_is_killed_ends_no_study(tmp_path: Path) -> None:
    long = {"tasks": {"sst-2": {**SMALL, "max_steps": 100, "evaluate_every": 50}}}
    its = study(tmp_path, methods=["plain", "vat"], tasks=["sst-2"], seeds=1, smoke=long)
    store = Store.begin(its, tmp_path / "out")
    crew = LocalCrew(store, jobs=2, cpus=1, measures={})
    killed: list[int] = []
    told: list[Told] = []

    def tell(news: Told) -> None:
        told.append(news)
        if news.what == "begun" and len(crew.at_work) == 2 and not killed:
            process = next(iter(crew._workers.values())).process
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)

    run(its, store, crew, tell)
    crashed = [news for news in told if news.what == "crashed"]
    assert len(killed) == len(crashed) == 1 and "ended by signal 9 (SIGKILL); see " in crashed[0].words
    assert [(each.state, each.attempts) for each in store.results()] == [("finished", 2), ("finished", 1)]


# ---- what is said ------------------------------------------------------------------------------------------------


def test_the_summary_has_spread_and_differences_and_plain_words(finished: tuple[Study, Store]) -> None:
    its, store = finished
    found = summarize(its, store)
    header, rows = score_table(found)
    assert header == ["method", "sst-2", "sts-b", "mean", "n"] and [row[0] for row in rows] == ["plain", "vat", "salt"]
    scores = [each.figures["score"] for each in store.results() if (each.method, each.task) == ("plain", "sst-2")]
    assert rows[0][1].startswith(f"{100 * sum(scores) / 2:.1f} ±") and rows[0][-1] == "2"
    assert len(found.pairs) == 4 and {pair.over for pair in found.pairs} == {"rows and seeds"}
    assert "Of 4 comparisons with plain" in sentences(found)[0]
    assert any("sst-2: train is a subset" in said for said in sentences(found))
    data = json.loads(json.dumps(as_data(found), allow_nan=False))
    assert len(data["runs"]) == 12 and data["baseline"] == "plain"


def test_watch_shows_what_is_done_what_runs_and_the_best(tmp_path: Path) -> None:
    its = study(tmp_path, methods=["plain"], tasks=["sst-2"], seeds=3)
    store = Store.begin(its, tmp_path / "out")
    assert Watcher(store).look().seconds_left is None
    cells = its.cells()
    claimed = store.claim(cells)
    assert claimed is not None
    fake(claimed, store.run_folder(claimed.id))
    store.finish(claimed.id)
    running = store.claim(cells)
    assert running is not None
    log = store.run_folder(running.id) / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"step": 10, "loss": 0.5}\n{"step": 20, "dev/score": 0.75}\n{"step": 30, "lo')
    look = Watcher(store).look()
    assert look.counts == {"finished": 1, "running": 1, "waiting": 1, "failed": 0} and look.total == 3
    assert look.going[0].step == 20 and look.going[0].loss == 0.5 and look.going[0].dev == 0.75
    assert look.best[0].method == "plain" and look.seconds_left is not None
    shown = RUNNER.invoke(app, ["watch", str(tmp_path / "out")])
    assert shown.exit_code == 0 and "1/3" in shown.output and "1 finished, 1 running, 1 waiting" in shown.output
    assert "0.500" in shown.output and "75.0" in shown.output


def test_the_command_lists_plans_and_refuses(tmp_path: Path) -> None:
    listed = RUNNER.invoke(app, ["study"])
    assert listed.exit_code == 0 and all(name in listed.output for name in shipped())
    planned = RUNNER.invoke(app, ["study", "anli", "--plan", "seeds=2", "--out", str(tmp_path / "out")])
    assert planned.exit_code == 0 and "6 runs" in planned.output and not (tmp_path / "out").exists()
    for arguments, words in (
        (["anli", "--jobs", "0"], "--jobs 0 should be at least 1"),
        (["anli", "--jobs", "-2"], "--jobs -2 should be at least 1"),
        (["anlii"], "did you mean 'anli'"),
        (["cost", "--smoke", "--jobs", "9", "--out", str(tmp_path / "c")], "the runs of cost are timed"),
        (["anli", "gpus=2", "--smoke", "--out", str(tmp_path / "g")], "gpus=2, and this machine has none"),
        (["anli", "--smoke", "--ray", "127.0.0.1:1", "--out", str(tmp_path / "r")], "no Ray cluster|needs ray"),
        (["anli", "--smoke", "--ray", "mine", "--out", str(tmp_path / "s")], "'mine' should be auto or an|needs ray"),
    ):  # fmt: skip
        refused = RUNNER.invoke(app, ["study", *arguments])
        assert isinstance(refused.exception, StackelbergError), (arguments, refused.output, refused.exception)
        assert re.search(words, str(refused.exception)), str(refused.exception)
    with pytest.raises(StudyError, match="is no study's folder"):
        RUNNER.invoke(app, ["watch", str(tmp_path)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("changes", "overrides", "words"),
    [
        ({"tasks": ["rte"]}, ["data=nowhere"], "rte: .*nowhere.*for this task alone it is rte.data=FOLDER"),
        ({"tasks": ["iwslt14-de-en"]}, [], "iwslt14-de-en: the recipe does not say where its corpus is"),
        ({"tasks": ["iwslt14-de-en"]}, ["iwslt14-de-en.data=nowhere"], "iwslt14-de-en: .*nowhere"),
    ],
)
def test_data_are_looked_for_before_anything_is_trained(
    changes: Any, overrides: list[str], words: str, tmp_path: Path
) -> None:
    its = Study.load(written(tmp_path, **changes), overrides)
    with pytest.raises(StackelbergError, match=words) as caught:
        check(its, its.cells())
    assert "\n" not in str(caught.value)
    check(its, [])  # what is finished needs none


def test_a_probing_task_that_is_not_there_is_found_out_first(tmp_path: Path) -> None:
    its = replace(study(tmp_path, tasks=["sst-2"]), measures={"probing": {"tasks": ["none.tsv"]}})
    with pytest.raises(StackelbergError, match=r"none\.tsv is not there"):
        check(its, its.cells())


def test_columns_are_named_by_what_they_differ_in() -> None:
    assert titles([("rte", "score"), ("mnli", "score")]) == {("rte", "score"): "rte", ("mnli", "score"): "mnli"}
    probing = [("sst-2", "probing/cr"), ("sst-2", "robustness/dev/anli-r1")]
    assert list(titles(probing).values()) == ["cr", "dev anli-r1"]
    two = titles([("rte", "seconds_per_step"), ("rte", "peak_gib"), ("nmt/tiny", "peak_gib")])
    assert list(two.values()) == ["rte, s a step", "rte, GiB", "tiny, GiB"]
    # what is no score is never without its unit
    assert list(titles([("rte", "seconds_per_step"), ("sst-2", "seconds_per_step")]).values()) == [
        "rte, s a step",
        "sst-2, s a step",
    ]


def test_measures_are_added_to_runs_that_are_there(finished: tuple[Study, Store]) -> None:
    its, store = finished
    cell = next(cell for cell in its.cells() if (cell.method, cell.task) == ("plain", "sst-2"))
    folder = store.run_folder(cell.id)
    before = (folder / "cell.json").read_text()
    rows = tiny_file(store.folder.parent / "smoke", "cr")
    try:
        measures = {"probing": {"tasks": [rows], "draws": 2}}
        assert finished_figures(folder, measures) is None  # it is finished, and not measured
        train(cell, folder, measures, 1)
        found = finished_figures(folder, measures)
        assert found is not None and 0 <= (found["probing/cr"] or 0) <= 1 and found["steps"] == 4
        assert json.loads((folder / "cell.json").read_text())["measured"] == measures
        assert finished_figures(folder, {"probing": {"tasks": [rows], "draws": 3}}) is None
    finally:
        (folder / "cell.json").write_text(before)
