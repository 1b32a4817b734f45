"""The structs and function signatures of railhead.h and railhead_ep.h, for ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Tuple, Type, TypeVar

_HEADER: List[Tuple[str, Any]] = [("struct_size", c_uint32), ("struct_version", c_uint32)]


class SessionConfig(ctypes.Structure):
    _fields_ = [*_HEADER, ("socket_path", c_char_p), ("timeout_ms", c_uint32), ("reserved", c_uint32)]


class CommConfig(ctypes.Structure):
    _fields_ = [
        *_HEADER,
        ("group", c_char_p),
        ("token", c_char_p),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("timeout_ms", c_uint32),
        ("reduce_group", c_uint32),
        ("heap_bytes", c_uint64),
        ("reproducible", c_uint32),
        ("device_kind", c_int32),
        ("device_ordinal", c_int32),
        ("local_rank", c_int32),
        ("local_size", c_int32),
        ("node", c_int32),
        ("device_uuid", c_char_p),
    ]


class CommInfo(ctypes.Structure):
    _fields_ = [
        *_HEADER,
        ("rank", c_int32),
        ("world_size", c_int32),
        ("local_rank", c_int32),
        ("local_size", c_int32),
        ("node", c_int32),
        ("device_kind", c_int32),
        ("device_ordinal", c_int32),
        ("reserved", c_int32),
        ("granularity", c_uint64),
        ("stop_word", c_void_p),
        ("device_stop_word", c_void_p),
        ("device_staged", c_int32),
        ("reserved1", c_int32),
        ("device_staged_reason", c_char * 256),
        ("device_fabric", c_int32),
        ("reserved2", c_int32),
        ("device_fabric_reason", c_char * 256),
    ]


class CommStatus(ctypes.Structure):
    _fields_ = [
        *_HEADER,
        ("result", c_int),
        ("rank", c_int32),
        ("culprit", c_int32),
        ("reporter", c_int32),
        ("operation", c_uint64),
        ("bytes", c_uint64),
        ("waiting_count", c_int32),
        ("reserved", c_int32),
        ("operation_name", c_char * 32),
        ("culprit_operation_name", c_char * 32),
        ("algorithm_name", c_char * 16),
        ("algorithm_why", c_char * 16),
        ("message", c_char * 512),
    ]


class Choice(ctypes.Structure):
    _fields_ = [*_HEADER, ("algorithm", c_char * 16), ("why", c_char * 16)]


class WindowConfig(ctypes.Structure):
    _fields_ = [*_HEADER, ("memory", c_int32), ("reserved", c_uint32)]


class WindowInfo(ctypes.Structure):
    _fields_ = [*_HEADER, ("bytes", c_uint64), ("offset", c_uint64), ("memory", c_int32), ("reserved", c_uint32)]


class RegisterConfig(ctypes.Structure):
    _fields_ = [
        *_HEADER,
        ("pointer", c_void_p),
        ("bytes", c_size_t),
        ("fd", c_int32),
        ("reserved", c_uint32),
        ("fd_offset", c_uint64),
    ]


class WindowSharing(ctypes.Structure):
    _fields_ = [*_HEADER, ("zero_copy", c_int32), ("rank", c_int32), ("reason", c_char * 256)]


class EpConfig(ctypes.Structure):
    _fields_ = [
        *_HEADER,
        ("mode", c_uint32),
        ("max_tokens_per_rank", c_uint32),
        ("hidden", c_uint32),
        ("num_experts", c_uint32),
        ("topk", c_uint32),
        ("num_physical", c_uint32),
        ("physical_expert", c_void_p),
        ("physical_rank", c_void_p),
        ("dtype", c_int32),
        ("wire_dtype", c_int32),
        ("combine_dtype", c_int32),
        ("scale_format", c_uint32),
        ("static_scale", c_float),
        ("on_invalid", c_uint32),
        ("on_dead", c_uint32),
        ("lost_weights", c_uint32),
        ("device_kind", c_int32),
        ("reserved", c_uint32),
    ]


class EpInfo(ctypes.Structure):
    _fields_ = [
        *_HEADER,
        ("local_experts", c_uint32),
        ("num_physical", c_uint32),
        ("max_local_experts", c_uint32),
        ("scale_columns", c_uint32),
        ("buffer_bytes", c_uint64),
        ("private_bytes", c_uint64),
        ("masked_count", c_int32),
        ("reserved", c_int32),
    ]


class EpReport(ctypes.Structure):
    _fields_ = [
        *_HEADER,
        ("result", c_int32),
        ("dispatch", c_uint32),
        ("rows", c_uint64),
        ("tokens", c_uint64),
        ("lost_ranks", c_void_p),
        ("lost_capacity", c_int32),
        ("lost_count", c_int32),
        ("lost_copies", c_uint64),
        ("invalid_ids", c_uint64),
        ("duplicate_ids", c_uint64),
        ("excess_tokens", c_uint64),
        ("non_finite", c_uint64),
        ("over_capacity", c_uint64),
        ("message", c_char * 256),
    ]


class EpDispatchIn(ctypes.Structure):
    _fields_ = [
        *_HEADER,
        ("x", c_void_p),
        ("x_scales", c_void_p),
        ("topk_idx", c_void_p),
        ("topk_weights", c_void_p),
        ("num_tokens", c_uint32),
        ("hidden", c_uint32),
        ("idx_dtype", c_int32),
        ("reserved", c_uint32),
        ("routing", c_void_p),
    ]


class EpDispatchOut(ctypes.Structure):
    _fields_ = [
        *_HEADER,
        ("layout", c_uint32),
        ("alignment", c_uint32),
        ("capacity", c_uint64),
        ("x", c_void_p),
        ("scales", c_void_p),
        ("counts", c_void_p),
        ("offsets", c_void_p),
        ("weights", c_void_p),
        ("source_rank", c_void_p),
        ("source_token", c_void_p),
        ("topk_idx", c_void_p),
        ("topk_weights", c_void_p),
        ("rows", c_uint64),
        ("tokens", c_uint64),
        ("report", c_void_p),
        ("rows_ptr", c_void_p),
        ("tokens_ptr", c_void_p),
    ]


class EpCombineArgs(ctypes.Structure):
    _fields_ = [
        *_HEADER,
        ("y", c_void_p),
        ("y_dtype", c_int32),
        ("out_dtype", c_int32),
        ("weighted", c_uint32),
        ("reserved", c_uint32),
        ("add", c_void_p),
        ("out", c_void_p),
    ]


S = TypeVar("S", bound=ctypes.Structure)


def versioned(struct: Type[S], **fields: Any) -> S:
    """A struct with its own size and version set, as RH_..._INIT does."""
    return struct(struct_size=ctypes.sizeof(struct), struct_version=1, **fields)


_pointer, _count, _number, _dtype = c_void_p, c_size_t, c_int32, c_int32
_out = POINTER(c_void_p)

# Name, result, arguments.
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "rh_result_string": (c_char_p, [c_int]),
    "rh_last_error_message": (c_char_p, []),
    "rh_get_version": (c_uint32, []),
    "rh_connect": (c_int, [POINTER(SessionConfig), _out]),
    "rh_close": (c_int, [_pointer]),
    "rh_comm_init": (c_int, [_pointer, POINTER(CommConfig), _out]),
    "rh_comm_finalize": (c_int, [_pointer]),
    "rh_comm_split": (c_int, [_pointer, _number, _number, _out]),
    "rh_comm_abort": (c_int, [_pointer]),
    "rh_comm_rank": (c_int, [_pointer, POINTER(c_int32)]),
    "rh_comm_world_size": (c_int, [_pointer, POINTER(c_int32)]),
    "rh_comm_get_info": (c_int, [_pointer, POINTER(CommInfo)]),
    "rh_comm_get_status": (c_int, [_pointer, POINTER(CommStatus)]),
    "rh_comm_get_waiting_for": (c_int, [_pointer, POINTER(c_int32), _number, POINTER(c_int32)]),
    "rh_comm_get_choice": (c_int, [_pointer, c_char_p, _count, _number, POINTER(Choice)]),
    "rh_window_alloc": (c_int, [_pointer, _count, POINTER(WindowConfig), _out]),
    "rh_window_free": (c_int, [_pointer]),
    "rh_window_pointer": (c_int, [_pointer, _number, _out]),
    "rh_window_get_info": (c_int, [_pointer, POINTER(WindowInfo)]),
    "rh_window_register": (c_int, [_pointer, POINTER(RegisterConfig), _out]),
    "rh_window_get_sharing": (c_int, [_pointer, POINTER(WindowSharing)]),
    "rh_all_reduce": (c_int, [_pointer, _pointer, _count, _dtype, _number, _pointer, _pointer]),
    "rh_all_gather": (c_int, [_pointer, _pointer, _count, _dtype, _pointer, _pointer]),
    "rh_reduce_scatter": (c_int, [_pointer, _pointer, _count, _dtype, _number, _pointer, _pointer]),
    "rh_all_to_all": (c_int, [_pointer, _pointer, _count, _dtype, _pointer, _pointer]),
    "rh_broadcast": (c_int, [_pointer, _pointer, _count, _dtype, _number, _pointer, _pointer]),
    "rh_reduce": (c_int, [_pointer, _pointer, _count, _dtype, _number, _number, _pointer, _pointer]),
    "rh_gather": (c_int, [_pointer, _pointer, _count, _dtype, _number, _pointer, _pointer]),
    "rh_scatter": (c_int, [_pointer, _pointer, _count, _dtype, _number, _pointer, _pointer]),
    "rh_send": (c_int, [_pointer, _count, _dtype, _number, _pointer, _pointer]),
    "rh_recv": (c_int, [_pointer, _count, _dtype, _number, _pointer, _pointer]),
    "rh_barrier": (c_int, [_pointer, _pointer]),
    "rh_group_start": (c_int, []),
    "rh_group_end": (c_int, []),
    "rh_op_create_pre_mul_sum": (c_int, [_pointer, _dtype, _pointer, POINTER(c_int32)]),
    "rh_op_destroy": (c_int, [_pointer, _number]),
    "rh_ep_buffer_size": (c_int, [POINTER(EpConfig), _number, POINTER(c_uint64)]),
    "rh_ep_create": (c_int, [_pointer, POINTER(EpConfig), _out]),
    "rh_ep_destroy": (c_int, [_pointer]),
    "rh_ep_get_info": (c_int, [_pointer, POINTER(EpInfo)]),
    "rh_ep_get_masked": (c_int, [_pointer, POINTER(c_int32), _number, POINTER(c_int32)]),
    "rh_ep_mask_rank": (c_int, [_pointer, _number]),
    "rh_ep_routing_create": (c_int, [_pointer, POINTER(EpDispatchIn), _out, _pointer]),
    "rh_ep_routing_destroy": (c_int, [_pointer]),
    "rh_ep_dispatch": (c_int, [_pointer, POINTER(EpDispatchIn), POINTER(EpDispatchOut), _out, _pointer]),
    "rh_ep_dispatch_send": (c_int, [_pointer, POINTER(EpDispatchIn), _out, _pointer]),
    "rh_ep_dispatch_recv": (c_int, [_pointer, POINTER(EpDispatchOut), _pointer]),
    "rh_ep_dispatch_counts": (c_int, [_pointer, POINTER(c_int32), POINTER(c_uint64), _pointer]),
    "rh_ep_combine": (c_int, [_pointer, POINTER(EpCombineArgs), POINTER(EpReport), _pointer]),
    "rh_ep_combine_send": (c_int, [_pointer, POINTER(EpCombineArgs), _pointer]),
    "rh_ep_combine_recv": (c_int, [_pointer, POINTER(EpReport), _pointer]),
    "rh_ep_release": (c_int, [_pointer, _pointer]),
    "rh_ep_get_report": (c_int, [_pointer, _pointer, POINTER(EpReport), POINTER(EpReport)]),
    "rh_ep_get_load": (c_int, [_pointer, POINTER(c_uint64), POINTER(c_uint64), c_uint32]),
}
