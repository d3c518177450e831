"""Counts settings and public functions in the listing of the public API."""

import re

from measuring import sources

FUNCTION = r"^pub (?:const |unsafe |async )*fn "


def figures(listing):
    """Returns the number of settings of each kind, and of the public functions of the first crate, `weirpool`.

    >>> figures("pub p::PoolConfig::a: u8\\npub fn p::PoolBuilder::a(self, u8) -> Self\\npub fn p::Pool::set_a(&self)\\npub mod q\\npub fn q::b()")
    ... # doctest: +NORMALIZE_WHITESPACE
    {'interface: fields of PoolConfig': 1, 'interface: setters of PoolBuilder': 1, 'interface: terms of a request': 0,
     'interface: setters of other types': 0, 'interface: setters at run time': 1, 'interface: public functions': 2}
    """
    count = lambda pattern: len(re.findall(pattern, listing, re.M))
    # A setter takes a value and returns it.
    setters = re.findall(FUNCTION + r"(?:\w+::)*(\w+)(?:<.*>)?::\w+\(self\b.*\) -> Self$", listing, re.M)
    at_build, terms = setters.count("PoolBuilder"), sum(name in ("Request", "Terms") for name in setters)
    # The listing has a part for each crate.
    first = re.split(r"^pub mod \w+$", listing.removeprefix("pub mod weirpool\n"), maxsplit=1, flags=re.M)[0]
    return {
        "interface: fields of PoolConfig": count(r"^pub \w+(?:::\w+)*::PoolConfig::\w+: "),
        "interface: setters of PoolBuilder": at_build,
        "interface: terms of a request": terms,
        "interface: setters of other types": len(setters) - at_build - terms,
        "interface: setters at run time": count(FUNCTION + r".*::(?:set_\w+|resize)\("),
        "interface: public functions": len(re.findall(FUNCTION, first, re.M)),
    }


def read():
    return figures((sources.ROOT / "docs/public-api.txt").read_text())
