"""What a client remembers from one message to the next, in the context that Flower keeps for each node through a run.

The method's state, what left last, and of the ledger either all lines (a ledger of the run alone) or the last one (a
lifetime ledger, which lies in a file).
"""

from typing import Any, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context

from fedveil.accounting import Ledger, Release
from fedveil.accounting.release import Kind
from fedveil.engines.states import pack, unpack
from fedveil.methods import Releases

STATE, VALUES, LEDGER, KEPT = "fedveil.state", "fedveil.values", "fedveil.ledger", "fedveil.kept"
OWN = (STATE, VALUES, LEDGER, KEPT)  # the mod's, not the app's


class Memory:
    """One client's memory.

    Parameters
    ----------
    context : Context
        Of the node.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def ledger(self, run: str, partition: int) -> Ledger:
        """The ledger of this run alone, as it was left."""
        return Ledger.parse(run, str(partition), self._lines())

    def store(self, line: str) -> None:
        """Keep a ledger line."""
        self._context.state[LEDGER] = ConfigRecord({"lines": [*self._lines(), line]})

    def store_last(self, line: str) -> None:
        """Keep the last line of a ledger that lies elsewhere."""
        self._context.state[LEDGER] = ConfigRecord({"lines": [line]})

    @property
    def last(self) -> str:
        """The last line kept, or an empty one."""
        return (self._lines() or [""])[-1]

    def load(self, fresh: Any) -> Any:
        """The method's state, or `fresh`, which says of what kind it must be."""
        arrays, values = self._context.state.get(STATE), self._context.state.get(VALUES)
        if not isinstance(arrays, ArrayRecord) or not isinstance(values, ConfigRecord):
            return fresh
        plain: dict[str, Any] = dict(values)
        if plain.pop("kind", None) != type(fresh).__name__:
            return fresh
        return unpack(fresh, {n: torch.from_numpy(a.numpy()) for n, a in arrays.items()}, plain)

    def kept(self) -> tuple[int, Releases]:
        """What left last, and in which round (0: nothing did)."""
        arrays, values, found = self._context.state.get(KEPT), self._context.state.get(VALUES), []
        for name, array in arrays.items() if isinstance(arrays, ArrayRecord) else ():
            _, kind, label = name.split("|", 2)
            found.append(Release(cast(Kind, kind), torch.from_numpy(array.numpy()), label))
        return int(str(values.get("kept", 0))) if isinstance(values, ConfigRecord) else 0, tuple(found)

    def save(self, state: Any, kept: tuple[int, Releases] = (0, ())) -> None:
        """Keep the method's state, and what left."""
        named = {f"{i}|{r.kind}|{r.name}": r.value for i, r in enumerate(kept[1])}
        self._context.state[KEPT] = ArrayRecord({n: Array(v.contiguous().numpy()) for n, v in named.items()})
        tensors, values = pack(state)
        arrays = {n: Array(t.detach().cpu().contiguous().numpy()) for n, t in tensors.items()}
        self._context.state[STATE] = ArrayRecord(arrays)
        self._context.state[VALUES] = ConfigRecord({"kind": type(state).__name__, "kept": kept[0], **values})

    def _lines(self) -> list[str]:
        record = self._context.state.get(LEDGER)
        lines = record.get("lines", []) if isinstance(record, ConfigRecord) else []
        return [str(line) for line in lines] if isinstance(lines, list) else []
