"""Freed memory stays with a process that asks for it."""

import os
import subprocess
import sys

import pytest

from tests.support.root import ROOT

SCRIPT = """
import os, sys, torch
from tinybert.distill.memory import keep_memory
if sys.argv[1] == "kept":
    keep_memory()
block = torch.ones(25_000_000)
del block
pages = int(open("/proc/self/statm").read().split()[1])
print(pages * os.sysconf("SC_PAGE_SIZE"))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_large_block_is_not_given_back():
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    held = {
        way: int(subprocess.check_output([sys.executable, "-c", SCRIPT, way], env=environment))
        for way in ("kept", "given back")
    }
    assert held["kept"] - held["given back"] > 90_000_000
