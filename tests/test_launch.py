"""The examples run as they are and learn; those of several processes by the launchers that people use."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# Accelerate has no flag for several processes on one machine without GPUs, only this one and ACCELERATE_USE_CPU.
ACCELERATE = [
    *("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
    *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"),
]


def learns(output: str) -> None:
    """The task loss of the last epoch is well below that of the first."""
    losses = [float(loss) for loss in re.findall(r"task[ _]loss[': ]+([\d.]+)", output)]
    assert len(losses) >= 4, output
    assert losses[-1] < 0.95 * losses[0], losses


def launched(launcher: list[str], program: Path) -> str:
    """What two processes print."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(EXAMPLES.parent / "src"),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", *launcher, str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")  # the stock Trainer's default, without a GPU
@pytest.mark.parametrize("name", ["custom_module", "lora_causal", "plain_loop", "trainer", "seq2seq_trainer"])
def test_example(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / f"{name}.py"))
    learns(capsys.readouterr().out)


@pytest.mark.parametrize("name", [pytest.param("ddp", marks=pytest.mark.soak), "fsdp2"])
def test_example_by_torchrun(name: str) -> None:
    learns(launched(TORCHRUN, EXAMPLES / f"{name}.py"))


@pytest.mark.soak
@pytest.mark.parametrize("name", ["ddp", "accelerate_loop"])
def test_example_by_accelerate_launch(name: str) -> None:
    learns(launched(ACCELERATE, EXAMPLES / f"{name}.py"))
