"""Who is told of every turn of the engine, so that the turns can be played again."""

from typing import Protocol

from ignisd.engine.world import World


class Watch(Protocol):
    """Called in the loop's thread; returns soon and does not raise."""

    def planning(self, world: World, now_ms: float) -> None:
        """A round is planned from this world now."""
        ...

    def committing(self, now_ms: float) -> None:
        """The oldest round under way is committed now."""
        ...


class Nobody:
    """Is told and keeps nothing."""

    def planning(self, world: World, now_ms: float) -> None:
        """Nothing follows."""

    def committing(self, now_ms: float) -> None:
        """Nothing follows."""
