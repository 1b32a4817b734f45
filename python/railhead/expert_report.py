"""Reports of dispatches and combines."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Tuple, Union

from ._abi import EpReport, versioned
from .enums import Result


@dataclasses.dataclass(frozen=True)
class ExpertReport:
    """The outcome of a dispatch or a combine. False if it was done, and nothing was lost, invalid or dropped."""

    result: Union[Result, int]  # OK, or why a call that ran later than it was made was refused or gave up
    dispatch: int  # its number among the dispatches of the buffer that have run, from 1; 0: none began
    rows: int  # received, as Received.rows; of a combine 0
    tokens: int  # token copies received; of a combine 0
    lost_ranks: Tuple[int, ...]  # masked, dead or late
    lost_copies: int  # token copies that did not reach these ranks, or did not come back
    invalid_ids: int  # entries of topk_idx
    duplicate_ids: int
    excess_tokens: int  # beyond max_tokens_per_rank
    non_finite: int  # tokens
    over_capacity: int  # rows, on the receiver
    message: str  # the first of each: rank, token, value

    def __bool__(self) -> bool:
        losses = (self.lost_copies, self.invalid_ids, self.duplicate_ids, self.excess_tokens, self.non_finite, self.over_capacity)
        return self.result != Result.OK or any((*losses, self.lost_ranks, self.message))


class ReportMemory:
    """Memory to which the library writes a report, with room for every rank."""

    def __init__(self, world_size: int) -> None:
        self._ranks = (ctypes.c_int32 * world_size)()
        self.raw = versioned(EpReport, lost_ranks=ctypes.addressof(self._ranks), lost_capacity=world_size)

    def read(self) -> ExpertReport:
        fields = {field.name: getattr(self.raw, field.name) for field in dataclasses.fields(ExpertReport)}
        if self.raw.result in Result.__members__.values():
            fields["result"] = Result(self.raw.result)
        fields["lost_ranks"] = tuple(self._ranks[: self.raw.lost_count])
        fields["message"] = self.raw.message.decode("utf-8", "replace")
        return ExpertReport(**fields)
