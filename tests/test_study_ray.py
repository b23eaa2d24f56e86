"""A study on a Ray cluster: the same numbers as on one machine, and nothing is lost with a node."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stackelberg.cli import app
from stackelberg.runs.records import read_records
from stackelberg.studies.cell import Cell
from stackelberg.studies.cluster import RayCrew, packed, unpack
from stackelberg.studies.errors import StudyError
from stackelberg.studies.local import LocalCrew
from stackelberg.studies.result import Result
from stackelberg.studies.running import run
from stackelberg.studies.store import Store
from tiny_study import SMALL, figures, study, written

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each, and a head that trains nothing."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'stackelberg[cluster]'")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.nodes = [made.add_node(num_cpus=1) for _ in range(2)]
    made.wait_for_nodes()
    yield made
    import ray

    ray.shutdown()
    made.shutdown()


def crew(store: Store, cluster: Any) -> RayCrew:
    return RayCrew(store, address=cluster.address, cpus=1, gpus=0, measures={})


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """The same study in processes of this machine."""
    home = tmp_path_factory.mktemp("local")
    its = study(home)
    store = Store.begin(its, home / "out")
    run(its, store, LocalCrew(store, jobs=2, cpus=1, measures={}))
    return store.results()


def on_node(node: Any, cells: Sequence[Cell]) -> Cell | None:
    """The run that a node is at: Ray calls a process that a node has started by the name of its task."""
    raylet = node.all_processes["raylet"][0].process.pid
    titles = {_title(process) for process in Path("/proc").glob("[0-9]*") if _parent(process) == raylet}
    return next((cell for cell in cells if f"ray::{cell.name}" in titles), None)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it is over
        return -1


def _title(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().rstrip(b"\0").decode()
    except OSError:
        return ""


class Killer(threading.Thread):
    """Removes a node in the middle of a run that the node is at."""

    def __init__(self, cluster: Any, store: Store, cells: Sequence[Cell]) -> None:
        super().__init__(daemon=True)
        self.cluster, self.store, self.cells = cluster, store, cells
        self.lost: Cell | None = None
        self.finished_by_then: set[str] = set()

    def run(self) -> None:
        while self.lost is None:
            time.sleep(0.05)
            for node in self.cluster.nodes:
                cell = on_node(node, self.cells)
                if cell is None or not read_records(self.store.run_folder(cell.id)):
                    continue
                self.cluster.nodes.remove(node)
                self.cluster.remove_node(node, allow_graceful=False)
                self.finished_by_then = {path.parent.name for path in self.store.folder.glob("runs/*/result.json")}
                self.lost = cell
                break


@pytest.mark.filterwarnings("ignore")
def test_a_node_is_lost_in_the_middle_of_a_run_and_the_numbers_are_those_of_one_machine(
    cluster: Any, tmp_path: Path
) -> None:
    long = {"tasks": {"sst-2": {**SMALL, "max_steps": 400, "evaluate_every": 50}}}
    its = study(tmp_path, methods=["plain", "vat"], tasks=["sst-2"], seeds=2, smoke=long)
    alone = Store.begin(its, tmp_path / "alone")
    run(its, alone, LocalCrew(alone, jobs=2, cpus=1, measures={}))
    store = Store.begin(its, tmp_path / "out")
    killer = Killer(cluster, store, its.cells())
    killer.start()
    run(its, store, crew(store, cluster))
    assert killer.lost is not None, "no node was seen at a run"
    assert killer.lost.id not in killer.finished_by_then, "its run was over when the node was removed"
    assert len(killer.finished_by_then) < 4
    assert [each.state for each in store.results()] == ["finished"] * 4
    assert figures(store.results()) == figures(alone.results())
    cluster.nodes.append(cluster.add_node(num_cpus=1))
    cluster.wait_for_nodes()


@pytest.mark.filterwarnings("ignore")
def test_nodes_that_do_not_see_the_folder_send_the_runs_back(
    cluster: Any, local: list[Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    its = study(tmp_path, methods=["plain"], seeds=1)
    store = Store.begin(its, tmp_path / "out")
    its_crew = crew(store, cluster)
    elsewhere = tmp_path / "elsewhere"  # where the nodes are told to look: there is no study
    monkeypatch.setattr(its_crew, "store", type("Moved", (), {"folder": elsewhere, "run_folder": store.run_folder})())
    run(its, store, its_crew)
    found = store.results()
    assert figures(found) == {name: value for name, value in figures(local).items() if name in figures(found)}
    assert not list(tmp_path.glob("out/runs/*/model/*.safetensors")), "weights were sent"
    assert (store.run_folder(found[0].id) / "model" / "config.json").is_file()


@pytest.mark.filterwarnings("ignore")
def test_the_command_runs_on_it(cluster: Any, tmp_path: Path) -> None:
    path = written(tmp_path, methods=["plain"], tasks=["sst-2"], seeds=1)
    out = tmp_path / "out"
    told = CliRunner().invoke(app, ["study", str(path), "--smoke", "--out", str(out), "--ray", cluster.address])
    assert told.exit_code == 0, told.output
    assert "[1/1] finished plain on sst-2, seed 0" in told.output and "plain" in told.stdout
    store = Store(out)
    assert [each.state for each in store.results()] == ["finished"]
    with pytest.raises(StudyError, match="a run asks for 99 CPUs and 0 GPUs, and the cluster has 2 and 0"):
        RayCrew(store, address=cluster.address, cpus=99, gpus=0, measures={})


@pytest.mark.filterwarnings("ignore")
def test_what_is_stopped_leaves_a_checkpoint(cluster: Any, tmp_path: Path) -> None:
    long = {"tasks": {"sst-2": {**SMALL, "max_steps": 5000, "evaluate_every": 100}}}
    its = study(tmp_path, methods=["plain"], tasks=["sst-2"], seeds=1, smoke=long)
    store = Store.begin(its, tmp_path / "out")
    its_crew = crew(store, cluster)
    cell = store.claim(its.cells())
    assert cell is not None
    its_crew.begin(cell)
    records = store.run_folder(cell.id) / "metrics.jsonl"
    while not records.is_file() or not records.read_text():
        assert not its_crew.ended(0.2)
    assert [(each.cell, each.how) for each in its_crew.stop()] == [(cell, "stopped")]
    assert list(store.run_folder(cell.id).glob("checkpoints/checkpoint-*"))


def test_what_is_packed_is_unpacked(tmp_path: Path) -> None:
    run_ = tmp_path / "run"
    for name in ("result.json", "model/config.json", "model/model.safetensors", "checkpoints/checkpoint-1/x.json"):
        (run_ / name).parent.mkdir(parents=True, exist_ok=True)
        (run_ / name).write_text(name)
    begun = tmp_path / "back" / "checkpoints" / "checkpoint-1" / "x.json"  # on this machine, and not finished
    begun.parent.mkdir(parents=True)
    begun.write_text("half")
    unpack(packed(run_), tmp_path / "back")
    assert sorted(str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*.*")) == [
        "model/config.json",
        "result.json",
    ]
