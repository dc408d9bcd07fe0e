"""Small prompts, states and ledgers that the tests of this folder share."""

from collections.abc import Sequence

from state.chain import Chain, Link, chain_of, link_page
from state.retained import Kind, Retained
from state.spec import PAGE_TOKENS, Class, Fingerprint

FINGERPRINT = Fingerprint.of(test="state")


def page_of(letter: int) -> list[int]:
    """A page of tokens that differs from that of every other letter at its first token."""
    return [1000 * letter + offset for offset in range(PAGE_TOKENS)]


def tokens_of(letters: Sequence[int], tail: Sequence[int] = ()) -> list[int]:
    """One page a letter, and some tokens after them."""
    return [token for letter in letters for token in page_of(letter)] + list(tail)


def chain_of_letters(letters: Sequence[int], salt: bytes = b"", link: Link = link_page) -> Chain:
    """The chain of one page a letter."""
    return chain_of(tokens_of(letters), salt, link)


def retained(
    id: int,
    chain: Chain,
    length: int | None = None,
    *,
    kind: Kind = Kind.CHECKPOINT,
    table: tuple[int, ...] | None = None,
    slot: int | None = None,
    cls: Class = Class.INTERACTIVE,
    now_ms: float = 0.0,
    hits: int = 0,
    superseded: bool = False,
) -> Retained:
    """A state of the first `length` tokens of a chain, all its whole pages by default."""
    length = chain.num_tokens // PAGE_TOKENS * PAGE_TOKENS if length is None else length
    return Retained(
        id=id,
        kind=kind,
        chain=chain,
        length=length,
        table=tuple(range(1, length // PAGE_TOKENS + 1)) if table is None else table,
        slot=id if slot is None else slot,
        cls=cls,
        conversation=0,
        superseded=superseded,
        hits=hits,
        published_ms=now_ms,
        used_ms=now_ms,
        fingerprint=FINGERPRINT,
    )
