"""Runs as tasks of a Ray cluster.

The process that was started by `stackelberg study` alone writes the store. A run's folder is the study's own where the
node that trains it sees that folder, on a shared file system; elsewhere the run is trained in a folder of the node, and
all but its weights and checkpoints is sent back.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import socket
import tempfile
import time
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stackelberg.errors import StackelbergError
from stackelberg.extras import need
from stackelberg.storage import whole_folder
from stackelberg.studies.cell import Cell
from stackelberg.studies.crew import Ended
from stackelberg.studies.errors import StudyError
from stackelberg.studies.store import STUDY, Store

REACHED = 10.0  # seconds in which a cluster's address must answer
LOST = 3  # nodes that may be lost under a run before it counts as crashed
HEAVY = (".safetensors", ".bin", ".npy")  # what is not sent back
QUEUED = 2  # runs handed to the cluster for each that it has room for, so that a node that is free finds one


class RayCrew:
    """Tasks of a cluster, each with its CPUs and GPUs.

    Args:
        store: of the study's folder.
        address: of the cluster; `auto` for the one that this machine belongs to.
        cpus: that a run asks for, and its threads.
        gpus: that a run asks for; one where the cluster has any, when None.
        jobs: how many at once; as many as there is room for when None.
        measures: the study's.
    """

    def __init__(
        self,
        store: Store,
        *,
        address: str,
        cpus: int,
        gpus: float | None,
        jobs: int | None = None,
        measures: Mapping[str, Any],
    ) -> None:
        """Join the cluster."""
        ray = self._ray = need("ray")
        if not ray.is_initialized():
            _refuse_unreachable(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise _no_cluster(address, error) from error
        there = ray.cluster_resources()
        wanted = gpus if gpus is not None else float(there.get("GPU", 0) > 0)
        fits = int(min(there.get("CPU", 0) // cpus, there.get("GPU", 0) // wanted if wanted else float("inf")))
        if fits < 1:
            raise StudyError(
                f"a run asks for {cpus} CPUs and {wanted:g} GPUs, and the cluster has {there.get('CPU', 0):g} and "
                f"{there.get('GPU', 0):g}; give cpus=... or gpus=..."
            )
        self.store, self.jobs = store, jobs or QUEUED * fits
        self._task = ray.remote(num_cpus=cpus, num_gpus=wanted, max_retries=LOST)(_train)
        self._arguments = (dict(measures), cpus)
        self._tasks: dict[Any, Cell] = {}

    @property
    def at_work(self) -> Collection[str]:
        """The ids of the runs that are being trained, or queued."""
        return [cell.id for cell in self._tasks.values()]

    @property
    def has_room(self) -> bool:
        """Whether one more can be handed over."""
        return len(self._tasks) < self.jobs

    def begin(self, cell: Cell) -> None:
        """Hand a run to the cluster."""
        task = self._task.options(name=cell.name).remote(cell, str(self.store.folder.resolve()), *self._arguments)
        self._tasks[task] = cell

    def ended(self, seconds: float) -> list[Ended]:
        """Those that are over."""
        if not self._tasks:
            time.sleep(seconds)
            return []
        over, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=seconds)
        return [self._settled(task) for task in over]

    def stop(self) -> list[Ended]:
        """Interrupt them; each leaves a checkpoint where its folder is the study's."""
        found: list[Ended] = []
        for task in self._tasks:
            self._ray.cancel(task)
        while self._tasks:
            try:
                found += self.ended(1.0)
            except KeyboardInterrupt:
                for task in self._tasks:
                    self._ray.cancel(task, force=True)
        return found

    def close(self) -> None:
        """End what is left."""
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        self._tasks.clear()

    def _settled(self, task: Any) -> Ended:
        cell = self._tasks.pop(task)
        errors = self._ray.exceptions
        try:
            how, error, sent = self._ray.get(task)
        except errors.TaskCancelledError:
            return Ended(cell, "stopped")
        except errors.RayTaskError as failed:
            if isinstance(failed.cause, KeyboardInterrupt):
                return Ended(cell, "stopped")
            return Ended(cell, "failed", str(failed.cause).partition("\n")[0])
        except errors.RayError as failed:
            return Ended(cell, "crashed", str(failed).partition("\n")[0])
        if sent is not None:
            unpack(sent, self.store.run_folder(cell.id))
        return Ended(cell, how, error)


def _refuse_unreachable(address: str) -> None:
    """What Ray itself takes minutes to find out."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise StudyError(f"--ray {address!r} should be auto or an address, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=REACHED).close()
    except OSError as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> StudyError:
    return StudyError(
        f"no Ray cluster answers at {address!r} ({str(error).partition(chr(10))[0]}); start one with 'ray start "
        "--head', or leave --ray out to run on this machine"
    )


def _train(cell: Cell, study: str, measures: Mapping[str, Any], cpus: int) -> tuple[str, str, bytes | None]:
    """On a node: how it ended, a sentence if it failed, and the folder if the study's is not there to write into."""
    from stackelberg.studies.worker import train

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    shared = (Path(study) / STUDY).is_file()
    home = Path(study) if shared else Path(tempfile.gettempdir()) / f"stackelberg-{os.getuid()}-{Path(study).name}"
    folder = home / "runs" / cell.id
    try:
        train(cell, folder, measures, cpus)
    except KeyboardInterrupt:
        return "stopped", "", None
    except StackelbergError as error:
        return "failed", str(error), None
    if shared:
        return "done", "", None
    sent = packed(folder)
    shutil.rmtree(folder)
    return "done", "", sent


def packed(folder: Path) -> bytes:
    """A run's folder without what is heavy."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in HEAVY and path.relative_to(folder).parts[0] != "checkpoints":
                file.write(path, str(path.relative_to(folder)))
    return made.getvalue()


def unpack(sent: bytes, folder: Path) -> None:
    """What `packed` made, as a folder that is whole or not there."""
    with whole_folder(folder) as unfinished, zipfile.ZipFile(io.BytesIO(sent)) as file:
        file.extractall(unfinished)  # which lets no name leave the folder
        if folder.is_dir():
            shutil.rmtree(folder)  # the same run, begun on this machine before and not finished
