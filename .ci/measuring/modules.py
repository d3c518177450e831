"""Follows the imports between the files of a crate, through the modules that export a name again."""

import collections
import re

from measuring import sources


def paths_of(tree):
    """Returns the paths of a `use` tree.

    >>> paths_of("a::{b, c::d as e}")
    [['a', 'b'], ['a', 'c', 'd']]
    """
    tree = re.sub(r" as \w+", "", re.sub(r"\s+", " ", tree)).strip()
    head, opens, rest = tree.partition("{")
    head = [part for part in head.split("::") if part]
    if not opens:
        return [head]
    items, depth, item = [], 0, ""
    for character in rest[: rest.rindex("}")]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            items, item = [*items, item], ""
        else:
            item += character
    return [head + [part.strip() for part in path] for one in [*items, item] if one.strip() for path in paths_of(one)]


def absolute(own, path, known):
    """Returns a path from the root of the crate; `None` if it does not begin with a module of the crate."""
    if path[0] == "crate":
        return path[1:]
    if path[0] in ("super", "self"):
        ups = sum(1 for part in path if part == "super")
        return own[: len(own) - ups] + [part for part in path if part not in ("super", "self")]
    return own + path if tuple(own + path[:1]) in known else None


def paths_in(file, known):
    """Returns the paths that a file names, from the root of its crate: those of its `use`, and the others."""
    trees = re.findall(r"\buse\s+([^;]+);", file.code)
    used = [path for tree in trees for path in paths_of(tree)]
    inline = [found.split("::") for found in re.findall(r"\b((?:crate|super|self)(?:::\w+)+)", file.code)]
    absolutes = ([absolute(list(file.module), path, known) for path in paths] for paths in (used, inline))
    return [[path for path in paths if path] for paths in absolutes]


def defining(path, known, names):
    """Returns the module that defines the item of a path, behind the modules that export it again."""
    for _ in range(8):
        depth = next(depth for depth in range(len(path), -1, -1) if tuple(path[:depth]) in known or depth == 0)
        module, rest = tuple(path[:depth]), path[depth:]
        again = names.get(module, {}).get(rest[0]) if rest else None
        if not again or again == path[: depth + 1]:
            break
        path = again + rest[1:]
    return module


def imports(crate):
    """Returns the pairs of modules of which the first imports from the second."""
    known = {file.module for file in crate.sources}
    found = {file.module: paths_in(file, known) for file in crate.sources}
    names = {own: {path[-1]: path for path in used} for own, (used, _) in found.items()}
    return {(own, defining(path, known, names)) for own, both in found.items() for paths in both for path in paths}


def components(edges):
    """Returns the strongly connected components with more than one node, by Tarjan's algorithm.

    >>> components({1: [2], 2: [3], 3: [2]})
    [[2, 3]]
    """
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def cycles(crate):
    """Returns the cycles between the files of each folder, which stand for the folders of their names too.

    A parent and its children are no cycle.

    >>> cycles(sources.example(lib="pub use a::A;", a="use super::b::B;", b="use crate::A;", c="use crate::A;"))
    [((), ['a', 'b'])]
    """
    folders = collections.defaultdict(lambda: collections.defaultdict(set))
    for own, target in imports(crate):
        depth = next((at for at, pair in enumerate(zip(own, target)) if pair[0] != pair[1]), None)
        if depth is not None:
            folders[own[:depth]][own[depth]].add(target[depth])
    return [(folder, cycle) for folder, edges in sorted(folders.items()) for cycle in components(edges)]


def layers(page):
    """Returns the folders of `src` in the table of layers of `CONTRIBUTING.md`, the lowest first.

    >>> layers("| layer | contents |\\n|---|---|\\n| `a`, `b` | of `c` |\\n| `d` | |")
    ['d', 'b', 'a']
    """
    table = re.search(r"^\| layer \|.*\n\|-.*\n((?:\|.*\n?)*)", page, re.M)
    rows = table.group(1).splitlines() if table else []
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])][::-1]


def upward():
    """Returns the pairs of folders of `src` of which the first imports from the second, a higher layer."""
    crate = next(crate for crate in sources.crates() if crate.folder == sources.ROOT)
    page = (sources.ROOT / "CONTRIBUTING.md").read_text()
    rank = {name: at for at, name in enumerate(layers(page))}
    folders = {file.module[0] for file in crate.sources if file.name.startswith("src/") and file.module}
    if unknown := (folders - {"guide"}) ^ set(rank):
        raise SystemExit(f"not both in src and in the table of layers of CONTRIBUTING.md: {', '.join(sorted(unknown))}")
    pairs = {(own[0], target[0]) for own, target in imports(crate) if own and target and own[0] in rank}
    return sorted((own, target) for own, target in pairs if rank[own] < rank.get(target, 0))
