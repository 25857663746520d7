"""Micro-batches teach what the whole batch teaches: over accumulation steps, over processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.builders import batch
from tests.support.root import ROOT
from tests.support.small_distillation import distill
from tinybert.distill.batches import micro_batches


def masked_batch():
    """Five rows of 7, 4, 5, 3 and 6 tokens with predictions in three of them."""
    positions = torch.tensor([1, 3, 8, 29])  # rows 0, 0, 1 and 4 of width 7
    return batch((7, 4, 5, 3, 6), positions=positions, labels=torch.tensor([11, 12, 13, 14]))


def test_rows_keep_their_tokens_labels_and_positions():
    whole = masked_batch()
    chosen = whole.rows(torch.tensor([1, 4]))
    assert chosen.input_ids.shape == (2, 6)
    assert torch.equal(chosen.input_ids[1], whole.input_ids[4, :6])
    assert chosen.mask.sum(1).tolist() == [4, 6]
    assert chosen.labels.tolist() == [13, 14]
    assert chosen.positions.tolist() == [1, 6 + 1]
    found, expected = chosen.input_ids.flatten()[chosen.positions], whole.input_ids.flatten()[whole.positions[2:]]
    assert torch.equal(found, expected)


def test_every_row_is_in_one_micro_batch_and_shares_sum_to_1():
    whole = masked_batch()
    dealt = [
        part
        for process in range(2)
        for part in micro_batches(whole, processes=2, process=process, accumulation_steps=2)
    ]
    rows = sorted(tuple(ids[mask].tolist()) for part in dealt for ids, mask in zip(*real(part.batch), strict=True))
    assert rows == sorted(tuple(ids[mask].tolist()) for ids, mask in zip(*real(whole), strict=True))
    for unit, count in {"rows": 5, "predictions": 4, "tokens": 25, "pairs": 49 + 16 + 25 + 9 + 36}.items():
        assert whole.counts()[unit] == count
        assert sum(part.shares[unit] for part in dealt) == pytest.approx(1.0)


def real(example):
    return example.input_ids, example.mask


def test_a_process_without_rows_takes_part_with_a_share_of_0():
    dealt = [
        micro_batches(batch((3, 4), 4), processes=2, process=process, accumulation_steps=2) for process in range(2)
    ]
    assert [[part.shares["tokens"] for part in mine] for mine in dealt] == [[3 / 7, 0.0], [4 / 7, 0.0]]
    assert len(dealt[1][1].batch.input_ids) == 1


def test_accumulation_gives_the_curve_of_whole_batches():
    _, whole = distill(steps=20, dropout=0.0)
    _, accumulated = distill(steps=20, dropout=0.0, accumulation_steps=3)
    for ours, theirs in zip(accumulated, whole, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


def check_curve(folder: Path) -> None:
    """What two processes left in `folder` is the curve of one."""
    _, alone = distill(steps=50, dropout=0.0)
    assert json.loads((folder / "processes.json").read_text()) == 2
    together = json.loads((folder / "curve.json").read_text())
    assert len(together) == 50
    for ours, theirs in zip(together, alone, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


def started(launcher: list[str], folder: Path, **variables: str) -> subprocess.Popen:
    """The small distillation under a launcher, a module with its arguments."""
    command = [sys.executable, "-m", *launcher, "-m", "tests.support.small_distillation", str(folder), "--steps", "50"]
    environment = os.environ | {"PYTHONPATH": "src", "OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
def test_two_processes_give_the_curve_of_one(tmp_path):
    """Under accelerate launch, on gloo: the same global batches, losses normalized over them.

    --multi_gpu is Accelerate's way to start a process group; the environment keeps it on the CPU.
    """
    launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    process = started(launcher, tmp_path, ACCELERATE_USE_CPU="true")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    check_curve(tmp_path)


def test_two_nodes_give_the_curve_of_one(tmp_path):
    """Under torchrun, each node with a folder of its own; only the first writes."""
    port = 15_000 + os.getpid() % 10_000  # below the ports that systems assign
    launcher = ["torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1", "--master_addr", "127.0.0.1"]
    launcher += ["--master_port", str(port), "--node_rank"]
    for rank in range(2):
        (tmp_path / f"node{rank}").mkdir()
    nodes = [started([*launcher, str(rank)], tmp_path / f"node{rank}") for rank in range(2)]
    try:
        errors = [node.communicate(timeout=300)[1] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], errors
    check_curve(tmp_path / "node0")
    assert not list((tmp_path / "node1").glob("*"))
