"""What a process asks of its machine."""

import os
import subprocess
import sys

import pytest
import torch

from tests.support.root import ROOT
from tinybert.distill.loop import start_accelerator
from tinybert.pipeline.errors import UserError

SCRIPT = """
import os, sys, torch
from tinybert.distill.loop import keep_memory
if sys.argv[1] == "kept":
    keep_memory()
block = torch.ones(25_000_000)
del block
pages = int(open("/proc/self/statm").read().split()[1])
print(pages * os.sysconf("SC_PAGE_SIZE"))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_stays_with_the_process():
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    held = {
        way: int(subprocess.check_output([sys.executable, "-c", SCRIPT, way], env=environment))
        for way in ("kept", "given back")
    }
    assert held["kept"] - held["given back"] > 90_000_000


def test_bfloat16_needs_hardware_support(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert start_accelerator("float32").mixed_precision == "no"
    with pytest.raises(UserError, match="precision: bfloat16 is not supported"):
        start_accelerator("bfloat16")
