"""Tests with the marks `torch` and `gpu` are skipped, with the reason, where PyTorch or a GPU is missing."""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(*arguments, timeout=600, **environment):
    """Runs Python. Not in the folder of the sources, which would hide the installed package."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=os.environ | environment, cwd=HERE)


@functools.cache
def missing(mark):
    """Returns why tests with a mark cannot run here, or None."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    if mark == "torch":
        return None
    # In another process, because the tests start processes that use CUDA.
    probe = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 1)"
    return None if run("-c", probe).returncode == 0 else "PyTorch finds no GPU"


def pytest_configure(config):
    config.addinivalue_line("markers", "torch: needs PyTorch")
    config.addinivalue_line("markers", "gpu: needs PyTorch and a GPU")


def pytest_collection_modifyitems(items):
    for item in items:
        for mark in ("torch", "gpu"):
            if item.get_closest_marker(mark) and missing(mark):
                item.add_marker(pytest.mark.skip(reason=missing(mark)))


@pytest.fixture
def python():
    return run
