"""Counts settings and public functions in the listing of the public API."""

import re

from measuring import sources

FUNCTION = r"^pub (?:const |unsafe |async )*fn "
# What a pool is given as code, and the way to the fields of `Tuning`, which count themselves.
NO_KNOBS = ["observer", "segment_source", "capacity_source", "tuning"]


def figures(listing):
    """Returns the number of settings, and of the public functions of the first crate, `weirpool`.

    A setting is a setter of the builder that takes no code, a field of `Tuning`, a term of a request, a setter of another
    type, or a setter at run time. Methods of the seams, which a pool calls, are none.

    >>> figures("pub weirpool::Tuning::a: u8\\npub fn weirpool::PoolBuilder::a(self, u8) -> Self\\n"
    ...         "pub fn weirpool::PoolBuilder::tuning(self, u8) -> Self\\npub fn weirpool::Pool::set_a(&self)\\n"
    ...         "pub fn weirpool_beside::Other::b(self, u8) -> Self\\npub fn weirpool::extend::Source::set_b(&self)\\n"
    ...         "pub mod q\\npub fn q::b()")
    ... # doctest: +NORMALIZE_WHITESPACE
    {'interface: settings': 3, 'interface: settings of the crates beside it': 1, 'interface: public functions': 5}
    """
    # A setter takes a value and returns it, or is named so.
    setters = FUNCTION + r"(\w+)::(.*::(?:\w+\(self\b.*\) -> Self$|(?:set_\w+|resize)\())"
    names = "|".join(NO_KNOBS)

    def knobs(part):
        found = re.findall(setters, part, re.M)
        return [of for of, rest in found if not re.match(rf"extend::|PoolBuilder::(?:{names})\(", rest)]

    # The listing has a part for each crate. A later one repeats a setter of its traits for each type that implements them.
    first = re.split(r"^pub mod \w+$", listing.removeprefix("pub mod weirpool\n"), maxsplit=1, flags=re.M)[0]
    fields = len(re.findall(r"^pub weirpool::Tuning::\w+: ", listing, re.M))
    return {
        "interface: settings": knobs(first).count("weirpool") + fields,
        "interface: settings of the crates beside it": sum(of != "weirpool" for of in knobs(listing)),
        "interface: public functions": len(re.findall(FUNCTION, first, re.M)),
    }


def read():
    return figures((sources.ROOT / "docs/public-api.txt").read_text())
