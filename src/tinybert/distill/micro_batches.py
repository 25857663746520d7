"""A batch cut for several processes and several passes, without changing what it teaches."""

from dataclasses import dataclass

import torch

from tinybert.models.outputs import Batch


@dataclass(frozen=True)
class Part:
    """Some rows of a batch, and their share of what its losses are means over, by the units of Batch.counts.

    A loss that is a mean over a part, times the part's share, sums up over all parts to the mean over the batch.
    """

    batch: Batch
    shares: dict[str, float]


def parts(batch: Batch, *, processes: int, process: int, passes: int) -> list[Part]:
    """The parts of `batch` that `process` (from 0) takes, one a pass; each process gets equally many.

    Rows are dealt in turn by length, so that processes have like work. Where there are too few, a part holds a row
    that another has too, with a share of 0: every process takes part in each pass.
    """
    whole = batch.counts()
    if processes == passes == 1:
        return [Part(batch, dict.fromkeys(whole, 1.0))]
    by_length = batch.mask.sum(dim=1).argsort(stable=True)
    mine = range(process, processes * passes, processes)
    return [_part(batch, by_length[first :: processes * passes].sort().values, whole) for first in mine]


def _part(batch: Batch, rows: torch.Tensor, whole: dict[str, int]) -> Part:
    if not len(rows):
        return Part(batch.rows(torch.zeros(1, dtype=torch.int64)), dict.fromkeys(whole, 0.0))
    part = batch.rows(rows)
    return Part(part, {unit: count / max(whole[unit], 1) for unit, count in part.counts().items()})
