package wire

import (
	"fmt"
	"maps"
	"slices"
)

// Result is an rh_result of the C ABI (client/include/railhead.h). The numbers never change.
type Result uint32

// The results; railhead.h has them as RH_ERR_TIMEOUT and so on, with the same numbers.
const (
	ResultOK                Result = 0
	ResultInvalidArgument   Result = 1
	ResultInvalidHandle     Result = 2
	ResultUnsupported       Result = 3
	ResultOutOfMemory       Result = 4
	ResultSystem            Result = 5
	ResultNoDaemon          Result = 6
	ResultDaemonLost        Result = 7
	ResultVersionMismatch   Result = 8
	ResultPermission        Result = 9
	ResultProtocol          Result = 10
	ResultTimeout           Result = 11
	ResultRankMissing       Result = 12
	ResultWorldSizeMismatch Result = 13
	ResultTokenMismatch     Result = 14
	ResultRankTaken         Result = 15
	ResultGroupBusy         Result = 16
	ResultRankDead          Result = 17
	ResultAborted           Result = 18
	ResultDraining          Result = 19
	ResultMismatch          Result = 20
	ResultLimit             Result = 21
	ResultBusy              Result = 22
	ResultStale             Result = 23
	ResultRefused           Result = 24
	ResultExpired           Result = 25
	ResultCancelled         Result = 26
	ResultPathLost          Result = 27
	ResultStalled           Result = 28
	ResultNoPeer            Result = 29
	ResultNameTaken         Result = 30
)

var resultNames = map[Result]string{
	ResultOK:                "ok",
	ResultInvalidArgument:   "invalid_argument",
	ResultInvalidHandle:     "invalid_handle",
	ResultUnsupported:       "unsupported",
	ResultOutOfMemory:       "out_of_memory",
	ResultSystem:            "system",
	ResultNoDaemon:          "no_daemon",
	ResultDaemonLost:        "daemon_lost",
	ResultVersionMismatch:   "version_mismatch",
	ResultPermission:        "permission",
	ResultProtocol:          "protocol",
	ResultTimeout:           "timeout",
	ResultRankMissing:       "rank_missing",
	ResultWorldSizeMismatch: "world_size_mismatch",
	ResultTokenMismatch:     "token_mismatch",
	ResultRankTaken:         "rank_taken",
	ResultGroupBusy:         "group_busy",
	ResultRankDead:          "rank_dead",
	ResultAborted:           "aborted",
	ResultDraining:          "draining",
	ResultMismatch:          "mismatch",
	ResultLimit:             "limit",
	ResultBusy:              "busy",
	ResultStale:             "stale",
	ResultRefused:           "refused",
	ResultExpired:           "expired",
	ResultCancelled:         "cancelled",
	ResultPathLost:          "path_lost",
	ResultStalled:           "stalled",
	ResultNoPeer:            "no_peer",
	ResultNameTaken:         "name_taken",
}

// String is the name that JSON, metrics and logs use.
func (r Result) String() string {
	if n, ok := resultNames[r]; ok {
		return n
	}
	return fmt.Sprintf("result_%d", uint32(r))
}

// Results are all results, in the order of their numbers.
func Results() []Result { return slices.Sorted(maps.Keys(resultNames)) }

// Known says whether the number is one of the results above.
func (r Result) Known() bool { _, ok := resultNames[r]; return ok }
