"""PyTorch on weirpool: the class without a GPU, and everything on one."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BENCHMARKS = HERE.parent / "benchmarks"
# These are defined by the base classes on top of others, or belong to other devices.
INHERITED = {"clone", "is_simple_data_ptr"}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("WEIRPOOL_CACHE", str(folder))
    return folder


def test_selftest_says_what_is_missing(python):
    done = python("-m", "weirpool.torch", "--selftest")
    if done.returncode == 3:
        assert done.stdout.startswith("not run: PyTorch"), done.stdout
    else:
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_cache_folder_is_private(cache):
    from weirpool.torch import cache_folder

    assert cache_folder() == cache
    assert cache.stat().st_mode & 0o777 == 0o700


def test_cache_folder_that_others_can_write_is_refused(cache):
    from weirpool.torch import BuildError, cache_folder

    cache.mkdir(mode=0o700)
    cache.chmod(0o777)
    with pytest.raises(BuildError, match="chmod 700"):
        cache_folder()


def test_cache_folder_behind_a_link_is_refused(cache, tmp_path):
    from weirpool.torch import BuildError, cache_folder

    (tmp_path / "elsewhere").mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BuildError, match="not a folder"):
        cache_folder()


def virtual_functions():
    """Returns the names of the virtual functions of PyTorch's class and of its bases."""
    import torch

    include = Path(torch.__file__).parent / "include/c10"
    names = set()
    for path, owner in [
        ("cuda/CUDACachingAllocator.h", "class CUDAAllocator"),
        ("core/CachingDeviceAllocator.h", "struct C10_API DeviceAllocator"),
        ("core/Allocator.h", "struct C10_API Allocator {"),
    ]:
        text = (include / path).read_text()
        body = text[text.index(owner) :]
        body = body[: body.index("\n};")]
        names |= set(re.findall(r"virtual[^;{(]*?\b(\w+)\(", body))
    return names - {"DeviceAllocator", "Allocator", "CUDAAllocator"}


@pytest.mark.torch
def test_class_overrides_every_virtual_function():
    import weirpool.torch

    source = (Path(weirpool.torch.__file__).parent / "allocator.cpp").read_text()
    source = "\n".join(line for line in source.splitlines() if not line.startswith("#"))
    overridden = set(re.findall(r"\b(\w+)\([^;{]*\)\s*(?:const\s+)?override", source))
    assert virtual_functions() - overridden - INHERITED == set()
    table = (Path(weirpool.torch.__file__).parent / "FUNCTIONS.md").read_text()
    assert virtual_functions() - set(re.findall(r"`(\w+)`", table)) == set()


@pytest.mark.torch
def test_class_compiles_for_the_installed_version(cache, python):
    code = "from weirpool.torch import _build; print(_build.build('allocator'))"
    first = python("-c", code)
    if "there is no C++ compiler" in first.stderr:
        pytest.skip("there is no C++ compiler")
    assert first.returncode == 0, first.stderr[-3000:]
    built = Path(first.stdout.strip())
    assert built.parent == cache
    before = built.stat().st_mtime_ns
    assert python("-c", code).stdout == first.stdout
    assert built.stat().st_mtime_ns == before, "it was compiled again"


@pytest.mark.torch
def test_missing_compiler_is_told(cache, python):
    code = "from weirpool.torch import _build\ntry: _build.build('allocator')\nexcept _build.BuildError as error: print(error)"
    assert "CXX" in python("-c", code, PATH="/nowhere", CXX="").stdout
    assert "does not compile for PyTorch" in python("-c", code, CXX="false").stdout


@pytest.mark.gpu
def test_missing_compiler_leaves_the_plain_allocator(cache, python):
    code = "import weirpool.torch, torch; weirpool.torch.use(); print(weirpool.torch.is_used(), torch.ones(4, device='cuda').sum().item())"
    done = python("-c", code, CXX="false")
    assert done.stdout.strip() == "plain 4.0", done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.gpu
def test_temporaries_of_side_streams_in_a_graph_use_their_memory_again(python):
    done = python("-m", "weirpool.torch", "--selftest", "--only", "temporaries of side streams")
    assert done.returncode == 0, done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("program", ["graphs", "graph_trees", "dlpack", "sharing", "others"])
def test_program_is_equal_to_the_one_on_pytorchs_allocator(python, program):
    done = python(HERE / "gpu" / f"{program}.py")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.gpu
def test_regions_keep_tensors_and_graphs(python):
    done = python(HERE / "gpu" / "regions.py")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "not freed" not in done.stderr, done.stderr[-3000:]


@pytest.mark.gpu
def test_training_and_serving_are_equal_to_those_on_pytorchs_allocator(python):
    done = python(BENCHMARKS / "train_and_serve.py", "--steps", "20", "--requests", "50")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
