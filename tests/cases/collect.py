"""Every scenario of this folder, with the faults that it says it notices."""

from importlib import import_module
from pathlib import Path

from tests.planting import CLAIMS, Claim

ON_THE_REAL_MODEL = "test_real_model"


def scenarios(*, real: bool = False) -> list[Claim]:
    """The scenarios on the fake device, or those on the real programs."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path.stem != "test_claims":
            import_module(f"tests.cases.{path.stem}")
    return [
        claim
        for claim in CLAIMS.values()
        if claim.test.__module__.startswith(f"{__package__}.")
        and claim.test.__module__.endswith(ON_THE_REAL_MODEL) == real
    ]
