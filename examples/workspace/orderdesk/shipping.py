"""Which carrier takes a parcel."""

import json
from pathlib import Path


def carrier_for(country: str, weight_kg: float, table: Path) -> str | None:
    """The first carrier that serves `country` and takes that weight."""
    carriers = json.loads(table.read_text())
    for name, terms in carriers.items():
        if country in terms["countries"] and weight_kg <= terms["max_weight_kg"]:
            return name
    return None
