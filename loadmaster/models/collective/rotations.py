"""Rotations of ranks as symmetries of an instance: their images of chunks, and the refusal of those that are not.

Source: [Shah23], section 5.4.1 (algorithm symmetry) and appendix B.1 (``symmetry_offsets``). A
rotation (offset, group) moves every rank by offset inside its group of that many consecutive ranks, in all groups at
once. TACCL then asks for equal sends only inside a group; a generator here maps every send, and must be an automorphism
of the whole instance.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.errors import InputError
from loadmaster.models.collective.instance import Chunk, Instance, Symmetry
from loadmaster.models.collective.symmetry import expect_automorphism

_Signature = tuple[int, bool, frozenset[int], frozenset[int], frozenset[int] | None]


def rotation(rank_count: int, offset: int, group: int, field: str = "sketch.symmetry") -> tuple[int, ...]:
    """Image of each rank under a rotation.

    Raises:
        InputError: the groups do not divide the ranks, or nothing moves.
    """
    if group < 1 or rank_count % group:
        remedy = f"Give a group that divides {rank_count} ranks."
        raise InputError(field, [offset, group], f"has groups that do not divide {rank_count} ranks", remedy)
    if not 0 < offset < group:
        raise InputError(field, [offset, group], "moves no rank", f"Give an offset from 1 to {group - 1}.")
    return tuple(r // group * group + (r % group + offset) % group for r in range(rank_count))


def chunk_images(
    chunks: Sequence[Chunk], ranks: Sequence[int], owners: Sequence[int] | None = None, field: str = "sketch.symmetry"
) -> tuple[int, ...]:
    """Image of each chunk when ranks move: the chunk with the images of its sources, targets and senders.

    Of several such, the j-th of one rank's goes to the j-th of the other's.

    Args:
        owners: a rank for each chunk, which must go along, where sources and targets do not tell chunks apart (the
            pieces of an AllReduce).

    Raises:
        InputError: a chunk has no image.
    """
    moved: dict[tuple[int, ...], frozenset[int]] = {}

    def image(of: tuple[int, ...]) -> frozenset[int]:
        if of not in moved:
            moved[of] = frozenset(ranks[r] for r in of)
        return moved[of]

    alike: dict[tuple[_Signature, int | None], list[int]] = {}
    place = []
    for index, chunk in enumerate(chunks):
        sets = frozenset(chunk.sources), frozenset(chunk.targets)
        key = (chunk.size_bytes, chunk.reduces, *sets, chunk.senders), owners[index] if owners else None
        those = alike.setdefault(key, [])
        place.append(len(those))
        those.append(index)
    found = []
    for index, chunk in enumerate(chunks):
        senders = None if chunk.senders is None else image(tuple(sorted(chunk.senders)))
        sets = image(chunk.sources), image(chunk.targets)
        key = (chunk.size_bytes, chunk.reduces, *sets, senders), ranks[owners[index]] if owners else None
        those = alike.get(key, [])
        if len(those) <= place[index]:
            raise InputError(
                field,
                list(ranks),
                f"is no symmetry: chunk {index} maps to one of {chunk.size_bytes} bytes from {_few(sets[0])} to "
                f"{_few(sets[1])}, and there is none",
                "Give an automorphism, or leave it out.",
            )
        found.append(those[place[index]])
    return tuple(found)


def generator(
    instance: Instance, offset: int, group: int, owners: Sequence[int] | None = None, field: str = "sketch.symmetry"
) -> Symmetry:
    """A rotation as a verified symmetry of an instance.

    Raises:
        InputError: it is not a symmetry; the message names the pair that breaks it.
    """
    ranks = rotation(instance.topology.rank_count, offset, group, field)
    symmetry = Symmetry(ranks, chunk_images(instance.chunks, ranks, owners, field))
    expect_automorphism(instance, symmetry, field)
    return symmetry


def _few(ranks: frozenset[int]) -> str:
    shown = sorted(ranks)
    return f"{len(shown)} ranks" if len(shown) > 3 else ", ".join(map(str, shown))
