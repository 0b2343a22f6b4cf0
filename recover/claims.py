"""Claims: what the parts of a store say of one place, and which of them is believed.

A record, a queue unit, the records beside it in its queue, the name of a file, an end mark: each says something of the
same bytes, and each may be wrong. No single one is believed against what is stored. An explanation needs two claims of
different sources, and no fewer than speak for the bytes as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)

LEAST = 2
"""So many independent claims change what a record or a name says of itself."""


class Claim(NamedTuple, Generic[T]):
    """`source` says `says` of a place; claims of one source and place are `weight` independent ones."""

    source: str
    says: T
    weight: int = 1


def believed(claims: Iterable[Claim[T]], stored: T) -> T:
    """What most claims say; `stored` unless one other thing has LEAST of them, more than any third, and no fewer."""
    weights: Counter[T] = Counter()
    for claim in claims:
        weights[claim.says] += claim.weight
    own = weights.pop(stored, 0)
    first, second = ([*weights.most_common(2), (stored, 0), (stored, 0)])[:2]
    return first[0] if first[1] >= max(LEAST, own) and first[1] > second[1] else stored
