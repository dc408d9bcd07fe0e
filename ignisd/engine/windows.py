"""One window of a state that goes down to the arena."""

from dataclasses import replace

from ignisd.engine.moves import Lower
from ignisd.engine.tiers import Tiers


def send_window(
    tiers: Tiers,
    stored_id: int,
    table: tuple[int, ...],
    moved_pages: int,
    number: int,
    *,
    lane: int | None = None,
    slot: int | None = None,
) -> tuple[Tiers, int]:
    """Send the next missing pages of a pending state, as many as the round may still move.

    Args:
        tiers: with the state in its arena.
        stored_id: whose pages.
        table: its pages on the device, in order.
        moved_pages: how many of the missing ones were sent before.
        number: of the round.
        lane, slot: where its image stands; it goes with this window if either is given.

    Returns:
        The tiers, with the landing noted if this was the last window, and how many have been sent.
    """
    located = tiers.arena.located(stored_id)
    has_image = lane is not None or slot is not None
    if has_image:
        tiers = tiers.charged(0, 1)
    end = min(moved_pages + tiers.affordable_pages(), len(located.missing))
    pages = located.missing[moved_pages:end]
    if not (has_image or pages):
        return tiers, moved_pages
    lower = Lower(
        stored_id=stored_id,
        pages=tuple(table[page] for page in pages),
        cells=tuple(located.page_cells[page] for page in pages),
        lane=lane,
        slot=slot,
        image_cells=located.image_cells if has_image else (),
    )
    tiers = tiers.charged(len(pages), 0).touching(stored_id, number)
    tiers = replace(tiers, lowers=(*tiers.lowers, lower))
    if end == len(located.missing):
        tiers = replace(tiers, landings=(*tiers.landings, (number, stored_id)))
    return tiers, end
