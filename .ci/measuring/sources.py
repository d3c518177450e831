"""Reads the crates of the workspace and their sources."""

import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Comments, then strings and characters.
LITERALS = re.compile(
    r'(//[^\n]*|/\*.*?\*/)|b?r(#*)".*?"\2|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\\\'])\'', re.S
)
# An item that only tests have; a field, a statement or an arm is none.
TEST_ITEM = re.compile(
    r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?"
    r"(?:(?:const|unsafe|async)\s+)*(?:mod\s+(\w+)|(?:fn|impl|use|struct|enum|type|trait|static)\b)"
)


def blanked(text):
    """Returns the code without comments, and with quotes in place of strings and characters, line by line.

    >>> blanked('a("{"); // {')
    'a(\"\"\");     '
    """
    def blank(found):
        return re.sub(r"[^\n]", " " if found.group(1) else '"', found.group(0))
    return LITERALS.sub(blank, text)


def closing(code, at):
    """Returns the position behind the brace that closes the one at `at`."""
    depth = 0
    for end in range(at, len(code)):
        depth += {"{": 1, "}": -1}.get(code[end], 0)
        if depth == 0:
            return end + 1
    return len(code)


def without_tests(code):
    """Returns blanked code with empty lines in place of items for tests, and the names of such modules in other files.

    >>> without_tests('a\\n#[cfg(test)]\\nmod b {\\n}\\n#[cfg(test)]\\nmod c;\\nd')
    ('a\\n\\n\\n\\n\\n\\nd', ['c'])
    """
    elsewhere = []
    while found := TEST_ITEM.search(code):
        brace, semicolon = (code.find(end, found.end()) % (len(code) + 1) for end in "{;")
        end = closing(code, brace) if brace < semicolon else semicolon + 1
        if brace < semicolon and code[end : end + 1] == ";":  # `use a::{b};`
            end += 1
        if found.group(1) and semicolon < brace:
            elsewhere.append(found.group(1))
        code = code[: found.start()] + "\n" * code.count("\n", found.start(), end) + code[end:]
    return code, elsewhere


@dataclasses.dataclass
class File:
    """A file of a crate. Its `code` has blanks in place of comments, and empty lines in place of tests."""
    path: pathlib.Path
    module: tuple  # names from the root of the crate
    text: str
    code: str
    is_test: bool

    @property
    def name(self):
        return str(self.path.relative_to(ROOT))

    def lines(self):
        """Returns the number of lines of code, docs and tests. Docs are all comments; empty lines are none of them.

        >>> text = '/// A\\nfn a() {} // a\\n\\n#[cfg(test)]\\nmod tests {\\n  // b\\n  use a;\\n}'
        >>> example(a=text).files[0].lines()
        (1, 1, 5)
        """
        if self.is_test:
            return 0, 0, sum(1 for line in self.text.splitlines() if line.strip())
        counts = [0, 0, 0]
        for text, code in zip(self.text.splitlines(), self.code.split("\n")):
            if text.strip():
                counts[0 if code.strip() else 1 if len(code) == len(text) else 2] += 1
        return tuple(counts)


@dataclasses.dataclass
class Crate:
    name: str
    folder: pathlib.Path
    is_test: bool  # it has no target but tests

    @functools.cached_property
    def files(self):
        """Returns the files below the crate's folder, without examples and what other packages have."""
        files, tests = [], set()
        for path in self.paths():
            file, elsewhere = self.file(path, path.read_text())
            files.append(file)
            tests |= {(*file.module, name) for name in elsewhere}
        for file in files:
            file.is_test |= any(file.module[: len(module)] == module for module in tests)
        return files

    def file(self, path, text):
        code, elsewhere = without_tests(blanked(text))
        is_test = self.is_test or self.within(path)[0] == "tests"
        return File(path, self.module(path), text, code, is_test), elsewhere

    @property
    def sources(self):
        return [file for file in self.files if not file.is_test]

    def paths(self):
        for folder, folders, names in os.walk(self.folder):
            here = pathlib.Path(folder)
            not_here = {"target"} | ({"examples"} if here == self.folder else set())
            folders[:] = sorted(
                name for name in folders
                if name not in not_here and name[0] != "." and not (here / name / "Cargo.toml").exists()
            )
            yield from sorted(here / name for name in names if name.endswith(".rs"))

    def within(self, path):
        return path.relative_to(self.folder).parts

    def module(self, path):
        parts = list(self.within(path))
        if parts[0] == "src":
            del parts[0]
        parts[-1] = parts[-1].removesuffix(".rs")
        return tuple(parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts)


@functools.cache
def workspace():
    """Returns what cargo knows about the workspace."""
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


@functools.cache
def crates():
    def crate(package):
        is_test = all(target["kind"] == ["test"] for target in package["targets"])
        return Crate(package["name"], pathlib.Path(package["manifest_path"]).parent, is_test)
    return sorted(map(crate, workspace()["packages"]), key=lambda crate: crate.name)


def example(**texts):
    """Returns a crate of files with these texts, for tests of what reads crates."""
    crate = Crate("example", ROOT, False)
    crate.files = [crate.file(ROOT / f"src/{name}.rs", text)[0] for name, text in texts.items()]
    return crate
