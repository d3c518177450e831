"""Reads, checks and writes the file of budgets."""

import dataclasses


@dataclasses.dataclass
class Budget:
    budget: int
    lowest: int  # that it ever was
    reason: str = ""


def parse(text):
    """Returns the budgets of a file by name.

    >>> parse("# a head\\na: b | 1,200 | 1,000 | new")
    {'a: b': Budget(budget=1200, lowest=1000, reason='new')}
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    fields = [[field.strip() for field in line.split("|", 3)] for line in lines]
    number = lambda field: int(field.replace(",", ""))
    return {name: Budget(number(budget), number(lowest), reason) for name, budget, lowest, reason in fields}


def problems(budgets, figures, skipped=()):
    """Returns what is wrong with figures, or with the file. Budgets of the skipped names have no figures.

    >>> problems(parse("a | 3 | 3 |"), {"a": 3})
    []
    >>> problems(parse("a | 3 | 3 |"), {"a": 4})
    ['a: 4 exceeds the budget of 3']
    >>> problems(parse("a | 4 | 3 |"), {"a": 4})
    ['a: the budget of 4 is above 3, the lowest so far, and has no reason beside it']
    >>> problems(parse("a | 4 | 3 | a table for b"), {"a": 4})
    []
    >>> problems(parse("a | 3 | 4 |\\nb | 1 | 1 |\\nc | 1 | 1 |"), {"a": 3, "d": 1}, ["c"])
    ... # doctest: +NORMALIZE_WHITESPACE
    ['a: the lowest budget, 4, is not the lowest', 'b: a budget without a figure; `.ci/measures --lower` removes it',
     'd: 1 has no budget; `.ci/measures --lower` adds it']
    """
    found = []
    for name, one in budgets.items():
        figure = figures.get(name)
        if figure is None and name not in skipped:
            found.append(f"{name}: a budget without a figure; `.ci/measures --lower` removes it")
        if figure is not None and figure > one.budget:
            found.append(f"{name}: {figure:,} exceeds the budget of {one.budget:,}")
        if one.budget > one.lowest and not one.reason:
            found.append(f"{name}: the budget of {one.budget:,} is above {one.lowest:,}, the lowest so far, and has no reason beside it")
        if one.budget < one.lowest:
            found.append(f"{name}: the lowest budget, {one.lowest:,}, is not the lowest")
    new = [name for name in figures if name not in budgets]
    return found + [f"{name}: {figures[name]:,} has no budget; `.ci/measures --lower` adds it" for name in new]


def rounded(name, figure):
    """Returns the budget for a figure. Lines have room up to the next hundred.

    >>> rounded("a: lines of code", 4_001), rounded("a: lines of code", 4_100), rounded("a: files in cycles", 3)
    (4100, 4100, 3)
    """
    return -(-figure // 100) * 100 if "lines of" in name else figure


def lowered(text, figures, skipped=()):
    """Returns the file with figures as budgets where they are lower, and with the new figures. It keeps its head.

    >>> figures = {"a: b": 3, "a: c": 6, "d": 2}
    >>> print(lowered("# head\\na: b | 4 | 3 | why\\na: c | 5 | 4 | why\\nb | 1 | 1 |", figures), end="")
    # head
    <BLANKLINE>
    a: b |      3 |      3 |
    a: c |      5 |      4 | why
    <BLANKLINE>
    d    |      2 |      2 |
    """
    lines = [line for line in text.splitlines() if line.startswith("#")]
    before = parse(text)
    names = [name for name in before | figures if name in figures or name in skipped]
    names.sort(key=[*figures, *skipped].index)
    width = max(map(len, names))
    group = None
    for name in names:
        figure = rounded(name, figures[name]) if name in figures else before[name].budget
        one = before.get(name) or Budget(figure, figure)
        budget, lowest = min(one.budget, figure), min(one.lowest, figure)
        reason = one.reason if budget > lowest else ""
        if group != (group := name.split(":")[0]):
            lines.append("")
        lines.append(f"{name:{width}} | {budget:6,} | {lowest:6,} | {reason}".rstrip())
    return "\n".join(lines) + "\n"
