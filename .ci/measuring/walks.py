"""Counts the files and functions of the workspace in which four walks execute code.

Callgrind runs `crates/bench/src/bin/walks.rs` once for each walk. The build has no optimizations and, with an empty list
of passes, inlines nothing, so that each function that runs has a frame.
"""

import os
import re
import shutil
import subprocess
import tempfile

from measuring import sources

PROGRAM = "crates/bench/"
WALKS = ["hot allocation", "hot free", "waiting allocation", "serving free"]


def are_possible():
    return shutil.which("valgrind") is not None


def build():
    """Builds the program; returns its path."""
    others = ("CARGO_ENCODED_RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER")
    kept = {name: value for name, value in os.environ.items() if name not in others}
    command = ["cargo", "build", "--quiet", "--profile", "walks", "-p", "weirpool-bench", "--bin", "walks"]
    subprocess.run(command, cwd=sources.ROOT, check=True, env=kept | {"RUSTFLAGS": "-C no-prepopulate-passes"})
    return os.path.join(sources.workspace()["target_directory"], "walks", "walks")


def functions(report):
    """Returns the functions of a report that have costs of their own, with their files.

    >>> sorted(functions("fl=(1) a.rs\\nfn=(1) f\\n7 1\\ncfn=(2) g\\ncalls=1 9\\n7 4\\nfn=(2)\\ncfn=(1)\\ncalls=1 1\\n9 4"))
    [('a.rs', 'f')]
    """
    names, found, is_of_a_call = {}, set(), False
    file = function = ""
    for line in report.splitlines():
        if named := re.match(r"c?(f[lien])=(\(\d+\))(?: (.*))?$", line):
            kind, key, name = named.groups()
            table = names.setdefault(kind == "fn", {})
            if name:
                table[key] = name
            if line.startswith("fl="):
                file = table[key]
            elif line.startswith("fn="):
                function = table[key]
        elif line.startswith("calls="):
            is_of_a_call = True
        elif re.match(r"[-+*\d]", line):
            if not is_of_a_call:
                found.add((file, function))
            is_of_a_call = False
    return found


def walk(program, title):
    """Returns the files and functions of one walk, without the program itself."""
    with tempfile.NamedTemporaryFile() as report:
        options = [f"--toggle-collect=walks::{title.replace(' ', '_')}", "--zero-before=walks::round"]
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={report.name}", *options, program]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        found = functions(open(report.name).read()) if run.returncode == 0 else ()
    root = f"{sources.ROOT}/"
    own = {(file.removeprefix(root), name) for file, name in found if file.startswith(root)}
    own = sorted((file, name) for file, name in own if not file.startswith(PROGRAM))
    if not own:
        raise SystemExit(f"the walk of a {title} was not counted:\n{run.stdout}")
    return own


def walks():
    program = build()
    return {title: walk(program, title) for title in WALKS}
