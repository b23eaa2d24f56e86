"""Runs as processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from stackelberg.errors import StackelbergError
from stackelberg.studies.cell import Cell
from stackelberg.studies.crew import Ended, Ending
from stackelberg.studies.errors import StudyError
from stackelberg.studies.store import Store

PRELOADED = [  # what runs import, once for all of them; what is not installed is passed over
    "stackelberg.studies.worker",
    "stackelberg.nlu.run",
    "stackelberg.nlu.training",
    "stackelberg.nlu.judging",
    "stackelberg.nmt.run",
    "stackelberg.nmt.training",
    "scipy.stats",
    "sklearn.metrics",
]
UNGUARDED = 78  # exit code of a process that would begin the study anew, of which it is a run
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class _Worker:
    cell: Cell
    process: Any
    link: Connection  # what it says of its end; when this side closes, it dies
    slot: int


class LocalCrew:
    """Several processes at once, each with its share of the machine.

    Args:
        store: of the study's folder.
        jobs: how many at once.
        cpus: threads of each.
        gpus: numbers of the GPUs; processes take turns on them. None is shown to a process when there are none.
        measures: the study's.
    """

    def __init__(
        self, store: Store, *, jobs: int, cpus: int, gpus: tuple[str, ...] = (), measures: Mapping[str, Any]
    ) -> None:
        """Nothing runs yet."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself asks
            os._exit(UNGUARDED)
        self.store, self.jobs, self.cpus, self.gpus, self.measures = store, jobs, cpus, gpus, measures
        self._workers: dict[str, _Worker] = {}
        # A server that has imported everything forks a process a run, unless CUDA may be in the way of a fork.
        self._context: Any = multiprocessing.get_context("spawn" if gpus else "forkserver")
        if not gpus:
            self._context.set_forkserver_preload(PRELOADED)

    @property
    def at_work(self) -> Collection[str]:
        """The ids of the runs that are being trained."""
        return self._workers.keys()

    @property
    def has_room(self) -> bool:
        """Whether one more can begin."""
        return len(self._workers) < self.jobs

    def begin(self, cell: Cell) -> None:
        """Train a run in a process of its own."""
        taken = {worker.slot for worker in self._workers.values()}
        slot = next(number for number in range(self.jobs) if number not in taken)
        ours, its = self._context.Pipe()
        log = self.store.log(cell.id)
        log.parent.mkdir(exist_ok=True)
        gpu = self.gpus[slot % len(self.gpus)] if self.gpus else None
        process = self._context.Process(
            target=_work,
            args=(its, cell, self.store.run_folder(cell.id), log, dict(self.measures), self.cpus, gpu),
            name=cell.name,
        )
        with _threads(self.cpus):
            process.start()
        its.close()
        self._workers[cell.id] = _Worker(cell, process, ours, slot)

    def ended(self, seconds: float) -> list[Ended]:
        """Those that are over."""
        wait([worker.process.sentinel for worker in self._workers.values()], timeout=seconds)
        return [self._settled(worker) for worker in list(self._workers.values()) if not worker.process.is_alive()]

    def stop(self) -> list[Ended]:
        """SIGTERM asks a run for a checkpoint, once more ends it at once."""
        found: list[Ended] = []
        while self._workers:
            for worker in self._workers.values():
                if worker.process.is_alive():
                    worker.process.terminate()
            try:
                while self._workers:
                    found += self.ended(1.0)
            except KeyboardInterrupt:
                continue
        return found

    def close(self) -> None:
        """End what is left."""
        for worker in self._workers.values():
            worker.process.kill()
            worker.process.join()
        self._workers.clear()

    def _settled(self, worker: _Worker) -> Ended:
        del self._workers[worker.cell.id]
        worker.process.join()
        said: tuple[Ending, str] = ("crashed", "")
        with contextlib.suppress(EOFError, OSError):
            if worker.link.poll():
                said = worker.link.recv()
        worker.link.close()
        how, error = said
        code = worker.process.exitcode
        if code == UNGUARDED:
            raise StudyError(
                f"{sys.argv[0]} runs a study at its top level, and each run's process imports it anew; put the call "
                "below if __name__ == '__main__':"
            )
        if how == "crashed":
            if code == -signal.SIGTERM:
                return Ended(worker.cell, "stopped")
            ended_by = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with code {code}"
            error = f"its process was ended {ended_by}; see {self.store.log(worker.cell.id)}"
        return Ended(worker.cell, how, error)


def _work(
    link: Connection, cell: Cell, folder: Path, log: Path, measures: Mapping[str, Any], cpus: int, gpu: str | None
) -> None:
    """In the process of a run: train it, and say how it ended."""
    os.setpgrp()  # Ctrl-C is the study's to hear, which asks every run to stop
    threading.Thread(target=_die_with, args=(link,), daemon=True).start()
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu or ""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with log.open("a", encoding="utf-8", buffering=1) as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        sys.stdout = sys.stderr = said
        try:
            from stackelberg.studies.worker import train

            train(cell, folder, measures, cpus)
        except StackelbergError as error:
            link.send(("failed", str(error)))
        except KeyboardInterrupt:
            link.send(("stopped", ""))
        except Exception as error:  # of any kind: the others go on, and its traceback is in the log
            traceback.print_exc()
            link.send(("failed", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}; see {log}"))
        else:
            link.send(("done", ""))


def _die_with(link: Connection) -> None:
    """End this process when the study's is gone: nobody would note what comes of it."""
    with contextlib.suppress(EOFError, OSError):
        link.recv()
    os._exit(1)


@contextlib.contextmanager
def _threads(count: int) -> Any:
    """What libraries read when they are imported, for processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(count)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that processes may be given, as CUDA_VISIBLE_DEVICES has them."""
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is not None:
        return tuple(each.strip() for each in said.split(",") if each.strip())
    import torch

    return tuple(map(str, range(torch.cuda.device_count())))


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
