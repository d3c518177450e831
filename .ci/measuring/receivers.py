"""Counts the methods that a receiver has: its own inherent ones, and those of what it dereferences to."""

import collections
import os
import re

from measuring import sources

# Smart pointers of others, whose target is in angle brackets.
POINTERS = r"(?:Arc|Rc|Box|CachePadded)"
METHOD = r"^ {%d}(?:pub(?:\([^)]*\))? )?(?:const |unsafe |async )*fn \w+[^{;]*?\(\s*(?:&(?:'\w+ )?)?(?:mut )?self\b"


def without_generics(text):
    """Returns a type or the head of an `impl` without what is in angle brackets.

    >>> without_generics("<F: Fn(u8) -> u8> Deref for Pinned<Box<T>>")
    ' Deref for Pinned'
    """
    text = text.replace("->", "")
    while (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    return text


def closest(file, homes):
    """Returns the file that shares the longest path with another. This distinguishes types of the same name."""
    return max(homes, key=lambda home: len(os.path.commonprefix([file.name, home.name])))


def receivers(crates):
    """Returns the methods of each type, its own and those with what it dereferences to, the largest first.

    >>> receivers([sources.example(
    ...     a="struct A;\\nimpl A {\\n    fn new() {}\\n    pub fn b<T: Fn(u8)>(&self) {}\\n}",
    ...     b="struct B(A);\\nimpl B {\\n    fn c(self: &Arc<Self>) {}\\n}\\nimpl Deref for B {\\n    type Target = Arc<A>;\\n}",
    ... )])
    {('B', 'src/b.rs'): (1, 2), ('A', 'src/a.rs'): (1, 1)}
    """
    homes = collections.defaultdict(list)
    for crate in crates:
        for file in crate.sources:
            for found in re.finditer(r"\b(?:struct|enum|union) (\w+)", file.code):
                homes[found.group(1)].append((crate.name, file))
    own, targets = collections.Counter(), {}
    for crate in crates:

        def type_of(text, file, anywhere=False):
            words = re.findall(r"\w+", without_generics(text))
            known = homes.get(words[-1], []) if words else []
            inside = [home for where, home in known if where == crate.name]
            files = inside or [home for _, home in known if anywhere]
            return (words[-1], closest(file, files).name) if files else None

        for file in crate.sources:
            for found in re.finditer(r"^( *)(?:unsafe )?impl\b([^{;]*)\{", file.code, re.M):
                head = without_generics(re.sub(r"\bwhere\b.*", "", found.group(2), flags=re.S))
                trait, _, type_ = head.rpartition(" for ")
                body = file.code[found.end() : sources.closing(file.code, found.end() - 1)]
                receiver = type_of(type_, file)
                if receiver and not trait:
                    own[receiver] += len(re.findall(METHOD % (len(found.group(1)) + 4), body, re.M))
                elif receiver and trait.strip().split("::")[-1] == "Deref":
                    target = re.search(r"\btype Target = ([^;]+);", body).group(1)
                    target = re.sub(rf"^.*\b{POINTERS}<(.*)>$", r"\1", target, flags=re.S)
                    targets[receiver] = type_of(target, file, anywhere=True)
    counted = {}
    for receiver in own | dict.fromkeys(targets, 0):
        chain = [receiver]
        while (target := targets.get(chain[-1])) and target not in chain:
            chain.append(target)
        counted[receiver] = own[receiver], sum(own[type_] for type_ in chain)
    return dict(sorted(counted.items(), key=lambda one: (-one[1][1], one[0])))
