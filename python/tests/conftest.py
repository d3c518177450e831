"""Tests with the mark `gpu` are skipped, with the reason, where PyTorch or a GPU is missing."""

import functools
import importlib.util
import subprocess
import sys

import pytest


@functools.cache
def missing():
    """Returns why tests on a GPU cannot run here, or None."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    # In another process, because the tests start processes that use CUDA.
    probe = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 1)"
    return None if subprocess.run([sys.executable, "-c", probe]).returncode == 0 else "PyTorch finds no GPU"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and missing():
            item.add_marker(pytest.mark.skip(reason=missing()))
