package tests

import (
	"fmt"
	"strings"
	"testing"

	"railhead/client"
	"railhead/internal/wire"
)

// choicesOf lists a comm's choices for an operation at three sizes, each in ordinary memory and in windows.
func choicesOf(t *testing.T, c *client.Comm, operation string) string {
	t.Helper()
	var text string
	for _, bytes := range []uint64{0, 64 << 10, 1 << 40} {
		for _, windows := range []bool{false, true} {
			algorithm, why, err := c.Choice(operation, bytes, windows)
			if err != nil {
				t.Fatal(err)
			}
			text += fmt.Sprintf("%s:%s ", algorithm, why)
		}
	}
	return text
}

func TestForcedAlgorithmsRunAndReportTheReason(t *testing.T) {
	s := startDaemon(t)
	copying := "oneshot:only " // of an all-to-all
	if len(wire.OpAllToAll.Algorithms()) > 2 {
		copying = "oneshot:default "
	}
	for i, c := range []struct {
		forcing, operation, choices string
		ran                         string // at 64 KiB in ordinary memory
	}{
		{"", "all_reduce", "oneshot:default oneshot:default twoshot:default pull:default twoshot:default pull:default ", "twoshot:default"},
		{"auto", "all_to_all", strings.Repeat(copying, 3) + "pull:default " + copying + "pull:default ", strings.TrimSpace(copying)},
		{"allreduce:ring;^tree", "all_reduce", "ring:forced ring:forced ring:forced ring:forced ring:forced ring:forced ", "ring:forced"},
		{"allreduce:ring;^tree", "broadcast", "pipe:default pipe:default pipe:default pipe:default pipe:default pipe:default ", "pipe:default"},
		{"tree", "all_reduce", "tree:forced tree:forced tree:forced tree:forced tree:forced tree:forced ", "tree:forced"},
		{"tree", "all_gather", "tree:forced tree:forced tree:forced tree:forced tree:forced tree:forced ", "tree:forced"},
		{"twoshot", "all_gather", "oneshot:default oneshot:default oneshot:default oneshot:default oneshot:default pull:default ", "oneshot:default"},
		{"^twoshot, pull", "all_reduce", "oneshot:default oneshot:default oneshot:forced oneshot:forced oneshot:forced oneshot:forced ", "oneshot:forced"},
		{"pull", "all_reduce", "oneshot:not_zero_copy pull:forced twoshot:not_zero_copy pull:forced twoshot:not_zero_copy pull:forced ", "twoshot:not_zero_copy"},
		{"broadcast:tree,ring", "broadcast", "ring:forced ring:forced ring:forced ring:forced ring:forced ring:forced ", "ring:forced"},
		{"oneshot", "reduce", "pipe:only pipe:only pipe:only pipe:only pipe:only pipe:only ", "pipe:only"},
	} {
		t.Setenv("RAILHEAD_ALGO", c.forcing)
		ranks := formGroup(t, s, client.CommConfig{Group: fmt.Sprint(i), World: 3})
		all(t, ranks, func(m member) error {
			const part, whole = 64 << 10 / 3, 64 << 10
			send, recv := make([]byte, whole), make([]byte, whole)
			var err error
			switch c.operation {
			case "all_reduce":
				err = m.AllReduce(send, recv, whole/4, client.F32, client.Sum)
			case "all_gather":
				err = m.AllGather(send[:part], recv[:3*part], part, client.U8)
			case "all_to_all":
				err = m.AllToAll(send[:3*part], recv[:3*part], part, client.U8)
			case "broadcast":
				err = m.Broadcast(send, recv, whole, client.U8, 1)
			case "reduce":
				err = m.Reduce(send, recv, whole/4, client.F32, client.Sum, 1)
			}
			if err != nil {
				return err
			}
			status, err := m.Status()
			if got := status.Algorithm + ":" + status.Why; err == nil && got != c.ran {
				return fmt.Errorf("%q: %s ran %s, want %s", c.forcing, c.operation, got, c.ran)
			}
			return err
		})
		for _, m := range ranks {
			if got := choicesOf(t, m.Comm, c.operation); got != c.choices {
				t.Errorf("%q: rank %d: %s: got %q, want %q", c.forcing, m.Rank(), c.operation, got, c.choices)
			}
		}
		all(t, ranks, finalize)
	}
}

func TestTheSizeAtTheEdgeOfARangeBelongsToTheRangeAboveIt(t *testing.T) {
	c := formGroup(t, startDaemon(t), client.CommConfig{World: 3})[0]
	for _, at := range []struct {
		bytes   uint64
		windows bool
		want    string
	}{
		{16<<10 - 1, false, "oneshot"}, {16 << 10, false, "twoshot"}, {16<<10 + 1, false, "twoshot"},
		{32<<10 - 1, true, "twoshot"}, {32 << 10, true, "pull"}, {32<<10 + 1, true, "pull"},
	} {
		if got, why, err := c.Choice("all_reduce", at.bytes, at.windows); err != nil || got != at.want {
			t.Errorf("%d bytes, in windows %v: %s (%s), %v; want %s", at.bytes, at.windows, got, why, err, at.want)
		}
	}
}

func TestInvalidForcedAlgorithmsAreRefused(t *testing.T) {
	s := startDaemon(t)
	var all []string // of alltoall
	for _, a := range wire.OpAllToAll.Algorithms() {
		all = append(all, a.String())
	}
	for text, want := range map[string]string{
		"rings":                               "rings",
		"allreduce:pipe":                      "oneshot, twoshot, pull, ring, tree", // these come first
		"allreduces:ring":                     "allgather",
		"alltoall:^" + strings.Join(all, ","): "none is left for alltoall",
		fmt.Sprintf("%0200d", 1):              "at most 191",
		"allreduce:ring;ring;tree":            "two clauses",
	} {
		t.Setenv("RAILHEAD_ALGO", text)
		_, err := connect(t, s).Init(client.CommConfig{Group: "refused", Rank: 0, World: 1})
		wantError(t, err, wire.ResultInvalidArgument, "comm_init", "RAILHEAD_ALGO", want)
	}
}

func TestReproducibleIsReadFromConfigAndEnvironment(t *testing.T) {
	s := startDaemon(t)
	init := func(c client.CommConfig) error {
		session := connect(t, s)
		c.Rank, c.World = 0, 1
		comm, err := session.Init(c)
		if err == nil {
			err = comm.Finalize()
		}
		return err
	}
	t.Setenv("RAILHEAD_REPRODUCIBLE", "yes")
	wantError(t, init(client.CommConfig{Group: "a"}), wire.ResultInvalidArgument, "RAILHEAD_REPRODUCIBLE=yes", "on or off")
	if err := init(client.CommConfig{Group: "a", Reproducible: client.ReproducibleOff}); err != nil {
		t.Error(err) // the config has priority
	}
	wantError(t, init(client.CommConfig{Group: "a", Reproducible: 3}), wire.ResultInvalidArgument, "reproducible is 3")
}

func TestChoicesOfUnknownOperationsAndEndedCommsAreErrors(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{Group: "g", World: 2})
	_, _, err := ranks[1].Choice("all_reduces", 1, false)
	wantError(t, err, wire.ResultInvalidArgument, "rank 1", "all_reduces", "reduce_scatter")
	all(t, ranks, finalize)
	_, _, err = ranks[0].Choice("all_reduce", 1, false)
	wantError(t, err, wire.ResultInvalidHandle, "comm_get_choice")
}
