"""Whether the servers of a spec are there. One short request each for the list of models; no model is asked."""

import asyncio
import difflib

import msgspec

from holdfast.engine import open_provider
from holdfast.models import Listing, ModelError
from holdfast.spec import Model, Spec

_SECONDS_MAX = 5.0


class Served(msgspec.Struct, frozen=True):
    """What a model's server said. `error`: it is not there or refuses us; `doubt`: it does not list the model."""

    place: str
    model: str
    error: str = ""
    doubt: str = ""


async def ask_servers(spec: Spec, seconds: float = _SECONDS_MAX) -> list[Served]:
    """Models and roles that have a server, all at once."""
    places = {f"models[{index}]": model for index, model in enumerate(spec.models)}
    places |= {f"roles.{name}": model for name, model in spec.roles.items()}
    found = await asyncio.gather(*(_asked(place, model, seconds) for place, model in places.items()))
    return [each for each in found if each is not None]


async def _asked(place: str, model: Model, seconds: float) -> Served | None:
    provider = open_provider(model, place)
    try:
        if not isinstance(provider, Listing):
            return None
        names = await provider.served(seconds)
    except ModelError as error:
        return Served(place, model.name, error=f"{place}: {error.message}")
    finally:
        await provider.close()
    if names is None or model.model in names:
        return Served(place, model.name)
    near = difflib.get_close_matches(model.model, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names[:5]) or 'none'}"
    return Served(place, model.name, doubt=f"{place}.model: the server does not list {model.model!r}; {hint}")
