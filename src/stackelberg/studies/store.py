"""A study's folder: what has become of every run.

study.yaml        what was asked for              runs/<id>/            a run's folder, as `Run` makes it
study.sqlite      a row a run                     runs/<id>/cell.json   what it is in the study; what was measured
logs/<id>.log     what the run said               result.json           the table, once there is one

Run folders are the truth: what is finished there is finished whatever the row says, and rows are made from them again
when the database is lost. Several processes may work on one folder: a run is claimed by one of them at a time.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from stackelberg.decoding import listing
from stackelberg.runs.folder import RECIPE
from stackelberg.runs.recipe import BaseRecipe
from stackelberg.storage import UNFINISHED, unwritable, write_whole
from stackelberg.studies.cell import Cell
from stackelberg.studies.errors import StudyError
from stackelberg.studies.result import CELL, Result, finished_figures

if TYPE_CHECKING:
    from stackelberg.studies.study import Study

STUDY, DATABASE = "study.yaml", "study.sqlite"
PATIENCE = 60.0  # seconds that a process waits for another one's writing
TOKEN = os.urandom(2).hex()  # tells processes of one number apart: the first of a container, and of the next one
STALE = 60.0  # seconds without a sign of life after which a claim is anybody's
COLUMNS = ("id", "kind", "method", "task", "setting", "seed", "state", "who", "heartbeat", "attempts", "error",
           "started", "finished", "figures")  # fmt: skip
TABLE = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, kind TEXT, method TEXT, task TEXT, setting TEXT, seed INTEGER,
    state TEXT DEFAULT 'waiting', who TEXT, heartbeat REAL, attempts INTEGER DEFAULT 0, error TEXT,
    started REAL, finished REAL, figures TEXT, place INTEGER
)
"""


class Store:
    """The folder of a study that was begun.

    Args:
        folder: the study's; `begin` makes one.
    """

    def __init__(self, folder: Path | str) -> None:
        """Open it, and believe its run folders."""
        self.folder = Path(folder)
        if not (self.folder / STUDY).is_file():
            raise StudyError(f"{self.folder} is no study's folder: it has no {STUDY}; {listing(self.folder)}")
        self.who = f"{socket.gethostname()}:{os.getpid()}:{TOKEN}"
        self._measures: Mapping[str, Any] = self.study.measures
        self._database = self._opened()
        self._believe_folders()

    @classmethod
    def begin(cls, study: Study, folder: Path | str) -> Store:
        """A new folder, or one where this study was begun before, perhaps with fewer methods, tasks or seeds."""
        from stackelberg.studies.study import Study as Studied

        home = Path(folder)
        if (home / STUDY).is_file():
            if (there := Studied.load(home / STUDY).name) != study.name:
                raise StudyError(f"{home} holds the study {there}, and this is {study.name}; give another --out")
        elif (wrong := unwritable(home)) is not None:
            raise StudyError(f"{wrong}; a study's folder is needed there, so give another --out")
        elif home.is_dir() and any(not path.name.startswith(("smoke", UNFINISHED)) for path in home.iterdir()):
            raise StudyError(f"{home} is not empty and holds no study; give another --out ({listing(home)})")
        cells = study.cells()
        if not (home / STUDY).is_file():
            write_whole(home / STUDY, study.to_yaml())
        store = cls(home)
        store._enter(cells)
        write_whole(home / STUDY, study.to_yaml())
        store._measures = study.measures
        store._believe_folders()  # what is measured from now on may not have been measured of finished runs
        return store

    @property
    def study(self) -> Study:
        """As it was asked for last."""
        from stackelberg.studies.study import Study as Studied

        return Studied.load(self.folder / STUDY)

    def results(self) -> list[Result]:
        """Every run, in the study's order."""
        rows = self._database.execute(f"SELECT {', '.join(COLUMNS)} FROM runs ORDER BY place").fetchall()
        return [self._result(dict(zip(COLUMNS, row, strict=True))) for row in rows]

    def run_folder(self, id_: str) -> Path:
        """Where a run is."""
        return self.folder / "runs" / id_

    def log(self, id_: str) -> Path:
        """What a run says goes here."""
        return self.folder / "logs" / f"{id_}.log"

    def claim(self, cells: Sequence[Cell]) -> Cell | None:
        """Take the first run that nobody has, or whose process is gone; it is this process's until it lets go."""
        with self._alone():
            rows = self._database.execute("SELECT id, state, who, heartbeat FROM runs").fetchall()
            known = {id_: (state, who, heartbeat) for id_, state, who, heartbeat in rows}
            for cell in cells:
                state, who, heartbeat = known.get(cell.id, ("waiting", None, None))
                if state == "waiting" or (state == "running" and self._is_gone(who, heartbeat)):
                    self._insert(cell, len(rows))
                    self._set(
                        cell.id, "attempts = attempts + 1, error = NULL", state="running", who=self.who,
                        heartbeat=time(), started=time(), finished=None,
                    )  # fmt: skip
                    return cell
        return None

    def beat(self, ids: Iterable[str]) -> None:
        """Say that this process is still at these runs."""
        with self._alone():
            for id_ in ids:
                self._set(id_, mine=True, heartbeat=time())

    def finish(self, id_: str) -> bool:
        """Note what a run's folder says; whether it is finished."""
        figures = finished_figures(self.run_folder(id_), self._measures)
        if figures is None:
            return False
        with self._alone():
            self._set(id_, state="finished", who=None, error=None, finished=time(), figures=_json(figures))
        return True

    def fail(self, id_: str, error: str) -> None:
        """Give a run up, unless another process has taken it over in the meantime."""
        with self._alone():
            self._set(id_, mine=True, state="failed", who=None, error=error, finished=time())

    def release(self, id_: str) -> None:
        """Let go of a run that is not finished."""
        with self._alone():
            self._set(id_, mine=True, state="waiting", who=None)

    def release_all(self) -> None:
        """Let go of every run that this process has."""
        with self._alone():
            self._database.execute(
                "UPDATE runs SET state = 'waiting', who = NULL WHERE state = 'running' AND who = ?", (self.who,)
            )

    def forgive(self) -> None:
        """Failed runs may be tried again."""
        with self._alone():
            self._database.execute("UPDATE runs SET state = 'waiting', error = NULL WHERE state = 'failed'")

    def close(self) -> None:
        """Of the database."""
        self._database.close()

    def _opened(self) -> sqlite3.Connection:
        path = self.folder / DATABASE
        try:
            database = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
            database.execute("PRAGMA synchronous = OFF")  # what a power failure takes is made again from run folders
            database.execute(TABLE)
        except sqlite3.DatabaseError as error:
            raise StudyError(
                f"{path} cannot be used ({error}); remove it, and it is made again from the run folders"
            ) from error
        return database

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other process writes."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise StudyError(f"{self.folder / DATABASE} cannot be written ({error})") from error
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def _enter(self, cells: Sequence[Cell]) -> None:
        """Rows of a study's runs, in its order; those that it no longer asks for go if nothing has come of them."""
        wanted = {cell.id: (cell.method, cell.task, cell.setting, cell.seed) for cell in cells}
        with self._alone():
            rows = self._database.execute("SELECT id, method, task, setting, seed, state, who, heartbeat FROM runs")
            there: dict[tuple[Any, ...], tuple[str, bool]] = {}
            for id_, *its, state, who, heartbeat in rows.fetchall():
                busy = state == "running" and not self._is_gone(who, heartbeat)
                there[tuple(its)] = id_, state == "finished" or busy
            for named, (id_, counts) in there.items():
                if wanted.get(id_) != named and not counts:
                    self._database.execute("DELETE FROM runs WHERE id = ?", (id_,))
            for place, cell in enumerate(cells):
                other, counts = there.get(wanted[cell.id], (cell.id, False))
                if other != cell.id and counts:
                    raise StudyError(
                        f"{self.folder} has {cell.name} with another recipe ({self._difference(cell, other)}); "
                        "give another --out"
                    )
                self._insert(cell, place)

    def _insert(self, cell: Cell, place: int) -> None:
        self._database.execute(
            "INSERT INTO runs (id, kind, method, task, setting, seed, place) VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET method = excluded.method, task = excluded.task, "
            "setting = excluded.setting, place = excluded.place",
            (cell.id, cell.kind, cell.method, cell.task, cell.setting, cell.seed, place),
        )

    def _set(self, id_: str, *more: str, mine: bool = False, **values: Any) -> None:
        """Of a run; with `mine` only if this process has it."""
        said = ", ".join([*more, *(f"{name} = ?" for name in values)])
        where, given = ("id = ? AND who = ?", (id_, self.who)) if mine else ("id = ?", (id_,))
        self._database.execute(f"UPDATE runs SET {said} WHERE {where}", (*values.values(), *given))

    def _believe_folders(self) -> None:
        """Rows say what run folders say: finished ones are, others are not; and a lost row is made again."""
        states = dict(self._database.execute("SELECT id, state FROM runs").fetchall())
        there = {path.parent.name: path for path in sorted(self.folder.glob(f"runs/*/{CELL}"))}
        found = {id_: finished_figures(path.parent, self._measures) for id_, path in there.items()}
        news = {id_: its for id_, its in found.items() if its is not None and states.get(id_) != "finished"}
        undone = [id_ for id_, state in states.items() if state == "finished" and found.get(id_) is None]
        if not news and not undone:
            return  # so that a folder can be looked at that cannot be written to
        with self._alone():
            for id_, figures in news.items():
                its = json.loads(there[id_].read_text(encoding="utf-8"))
                self._database.execute(
                    "INSERT OR IGNORE INTO runs (id, kind, method, task, setting, seed, place) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (id_, *(its[name] for name in ("kind", "method", "task", "setting", "seed")), len(states)),
                )
                self._set(id_, state="finished", who=None, error=None, finished=there[id_].stat().st_mtime,
                          figures=_json(figures))  # fmt: skip
            for id_ in undone:
                self._set(id_, state="waiting", figures=None)

    def _is_gone(self, who: str | None, heartbeat: float | None) -> bool:
        """Whether the process that claimed a run is there no longer."""
        if who == self.who:
            return False
        if who is None or heartbeat is None or time() - heartbeat > STALE:
            return True
        host, process, token = who.rsplit(":", 2)
        if host != socket.gethostname():
            return False
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return int(process) == os.getpid() and token != TOKEN

    def _difference(self, cell: Cell, other: str) -> str:
        path, ours = self.run_folder(other) / RECIPE, cell.recipe
        return BaseRecipe.difference(ours, ours.load(path)) if path.is_file() else "its folder is gone"

    def _result(self, row: dict[str, Any]) -> Result:
        said = json.loads(row.pop("figures") or "{}")
        figures = {name: math.nan if value is None else value for name, value in said.items()}
        return Result(**row, figures=figures, folder=self.run_folder(row["id"]))


def _json(figures: Mapping[str, float | None]) -> str:
    return json.dumps(figures)
