"""Compiles C++ for the installed version of PyTorch."""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Optional


class BuildError(RuntimeError):
    """The C++ class could not be compiled for this version of PyTorch."""


def cache_folder() -> Path:
    """Returns the private folder of this user that holds compiled classes, and creates it.

    It is `$WEIRPOOL_CACHE`, or else `weirpool` in `$XDG_CACHE_HOME` or `~/.cache`. Raises [`BuildError`] if it belongs to another user or
    others can write to it.
    """
    named = os.environ.get("WEIRPOOL_CACHE")
    parent = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(named) if named else Path(parent) / "weirpool"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError as error:
        raise BuildError(f"no folder for compiled classes: {error}; name one in WEIRPOOL_CACHE") from error
    if not stat.S_ISDIR(found.st_mode):
        raise BuildError(f"{folder} is not a folder; name one in WEIRPOOL_CACHE")
    if found.st_uid != os.geteuid():
        raise BuildError(f"{folder} belongs to user {found.st_uid}, and not to {os.geteuid()}; name another folder in WEIRPOOL_CACHE")
    if found.st_mode & 0o022:
        raise BuildError(f"{folder} can be written by other users; run chmod 700 {folder}")
    return folder


def build(name: str, source: Optional[Path] = None) -> str:
    """Compiles a C++ source, unless the cache has it for this version of PyTorch, this source and this compiler's options. Returns the library's path."""
    import torch

    source = Path(source) if source else Path(__file__).with_name(f"{name}.cpp")
    text = source.read_bytes()
    options = [
        "-O2",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
    ]
    parts = [text, torch.__version__.encode(), (torch.version.git_version or "").encode(), " ".join(options).encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = cache_folder()
    built = folder / f"{name}-{torch.__version__}-{digest}.so"
    if built.exists():
        return str(built)
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise BuildError("there is no C++ compiler to compile the allocator's class; install one, or name it in CXX")
    root = Path(torch.__file__).parent
    includes = [root / "include", root / "include/torch/csrc/api/include", *cuda_includes(root)]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = Path(work) / f"{name}.so"
        rest = [*options, str(source), "-o", str(made), *(f"-I{include}" for include in includes)]
        rest += [f"-L{root / 'lib'}", "-lc10", "-lc10_cuda", "-ltorch_cuda", "-ldl", "-Wl,--allow-shlib-undefined"]
        # Before the compiler's own, which may be an archive: two copies of its streams in one process crash.
        rest += loaded_library("libstdc++.so")
        # Later versions of PyTorch may need the later standard.
        for standard in ("-std=c++17", "-std=c++20"):
            command = [*compiler.split(), standard, *rest]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                break
        if done.returncode != 0:
            log = folder / f"{name}-{torch.__version__}.log"
            log.write_text(f"{' '.join(command)}\n{done.stderr}")
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            first = errors[0] if errors else f"exit code {done.returncode}"
            remedy = "; install a CUDA toolkit, or the package nvidia-cuda-crt" if "No such file" in first else ""
            raise BuildError(f"the allocator's class does not compile for PyTorch {torch.__version__} ({first.strip()}; all of it is in {log}){remedy}")
        # Replaced atomically, because another process may build it too.
        os.replace(made, built)
    return str(built)


def loaded_library(name: str) -> list[str]:
    """Returns the path of a library that this process has loaded, if it has."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if f"/{name}" in line}
    return sorted(paths)[:1]


def cuda_includes(torch_root: Path) -> list[Path]:
    """Returns the folders of CUDA's headers: of a toolkit, or of the packages that PyTorch installs."""
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    toolkits += [str(Path(nvcc).parent.parent)] if (nvcc := shutil.which("nvcc")) else []
    folders = [Path(toolkit) / "include" for toolkit in toolkits if toolkit]
    for path in [torch_root.parent, *map(Path, sys.path)]:
        folders += sorted(path.glob("nvidia/*/include"))
        # The packages of CUDA 13 lack some headers, which Triton has.
        folders += sorted(path.glob("triton/backends/nvidia/include"))
    return list(dict.fromkeys(folder for folder in folders if folder.is_dir()))
