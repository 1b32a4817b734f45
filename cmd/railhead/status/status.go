// Package status is `railhead status`: it shows the groups of a daemon.
package status

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/admin"
	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/wire"
	"railhead/server"
	"railhead/server/flight"
	"railhead/server/group"
	"railhead/server/membership"
)

// Command is `railhead status`.
func Command() *cobra.Command {
	var socket string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the daemon's groups: their ranks, current operations and failures",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			raw, err := admin.Get(cmd.Context(), "status", socket, "/v1/groups")
			if err != nil {
				return err
			}
			if asJSON {
				_, err := cmd.OutOrStdout().Write(raw)
				return err
			}
			var s server.Status
			if err := json.Unmarshal(raw, &s); err != nil {
				return cli.Failuref("status: cannot read the daemon's answer: %w", err)
			}
			printStatus(cmd.OutOrStdout(), s)
			return nil
		},
	}
	f := cmd.Flags()
	admin.AddSocket(f, &socket)
	f.BoolVar(&asJSON, "json", false, "print the daemon's JSON answer")
	return cmd
}

func printStatus(out io.Writer, s server.Status) {
	state := "serving"
	if s.Daemon.Draining {
		state = "draining"
	}
	_, _ = fmt.Fprintf(out, "railhead %s, pid %d, %s since %s, %d sessions at %s\n", s.Daemon.Version, s.Daemon.PID, state,
		s.Daemon.Started.Format(time.RFC3339), s.Daemon.Sessions, s.Daemon.Socket)
	if n := s.Daemon.Unwatched; n > 0 {
		_, _ = fmt.Fprintf(out, "%d sessions of processes in another pid namespace: their deaths are seen by lease and socket alone; mount /proc for the daemon\n", n)
	}
	printTuning(out, &s.Daemon.Tuning)
	if len(s.Groups) == 0 {
		_, _ = fmt.Fprintln(out, "no groups")
	}
	slices.SortStableFunc(s.Groups, func(a, b membership.GroupInfo) int { return brokenLast(a) - brokenLast(b) })
	for i := range s.Groups {
		printGroup(out, &s.Groups[i])
	}
	for i := range s.Ended {
		g := &s.Ended[i]
		_, _ = fmt.Fprintf(out, "ended: group %q #%d: %s: %s\n", g.Name, g.Incarnation, g.Result, g.Cause)
	}
}

func printTuning(out io.Writer, t *group.Tuning) {
	noisy := func(n int) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprintf(", %d of them measured while it was busy", n)
	}
	switch {
	case t.Refused != "":
		_, _ = fmt.Fprintf(out, "tuning table: not used: %s\n", t.Refused)
	case t.Entries > 0:
		_, _ = fmt.Fprintf(out, "tuning table: %d entries for this machine (%s)%s\n", t.Entries, t.Fingerprint, noisy(t.Noisy))
	default:
		_, _ = fmt.Fprintf(out, "tuning table: none for this machine (%s), default thresholds are used\n", t.Fingerprint)
	}
	for _, c := range t.CUDA {
		if c.Refused != "" {
			_, _ = fmt.Fprintf(out, "tuning table of CUDA devices: not used: %s\n", c.Refused)
			continue
		}
		_, _ = fmt.Fprintf(out, "tuning table of CUDA devices: %d entries (%s)%s\n", c.Entries, c.Fingerprint, noisy(c.Noisy))
	}
}

// brokenLast orders groups: those that are of use first.
func brokenLast(g membership.GroupInfo) int {
	if g.State == membership.Broken {
		return 1
	}
	return 0
}

func printGroup(out io.Writer, g *membership.GroupInfo) {
	on := ""
	if g.Device != wire.DeviceCPU {
		on = " on " + g.Device.String()
	}
	_, _ = fmt.Fprintf(out, "group %q #%d: %s, %d ranks%s, %d bytes in %d windows%s\n", g.Name, g.Incarnation, g.State, g.WorldSize, on,
		g.WindowBytes, len(g.Windows), healthOf(g))
	printDevice(out, g)
	if h := g.Health; h != nil && h.State == flight.Stalled {
		_, _ = fmt.Fprintf(out, "  %s\n", h.Text)
	}
	if g.Forcing != "" && g.Forcing != "auto" || !g.Reproducible {
		_, _ = fmt.Fprintf(out, "  algorithms %q, reproducible %t\n", g.Forcing, g.Reproducible)
	}
	if !slices.IsSorted(g.Ring) {
		_, _ = fmt.Fprintf(out, "  order of ranks in rings: %v\n", g.Ring)
	}
	if g.Cause != "" {
		_, _ = fmt.Fprintf(out, "  %s: %s\n", g.Result, g.Cause)
	}
	if len(g.Missing) > 0 {
		_, _ = fmt.Fprintf(out, "  waiting for ranks %v\n", g.Missing)
	}
	if g.WaitingIn != "" {
		_, _ = fmt.Fprintf(out, "  in %s, waiting for ranks %v\n", g.WaitingIn, g.WaitingFor)
	}
	if g.ReleasingIn != "" {
		_, _ = fmt.Fprintf(out, "  in %s: the daemon is releasing the pages of freed windows\n", g.ReleasingIn)
	}
	for _, r := range g.Registered {
		how := "shared"
		if !r.Shared {
			how = fmt.Sprintf("staged: %q", r.Reason) // the rank's own words
		}
		_, _ = fmt.Fprintf(out, "  registered window %d, %d bytes%s: %s\n", r.Number, r.Bytes, ofMemory(r.Memory), how)
	}
	if m := g.MoE; m != nil {
		_, _ = fmt.Fprintf(out, "  MoE: %.0f tokens, %.0f copies, %.0f dropped%s\n", m.Tokens, m.Copies, m.Dropped, busiestOf(m))
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "  rank\tpid\tstate\toperation\tsequence\tage\tbytes\tlast algorithm\twaiting for")
	for _, r := range g.Ranks {
		waiting := ""
		if len(r.WaitingFor) > 0 {
			waiting = fmt.Sprint(r.WaitingFor)
		}
		algorithm := ""
		if r.Algorithm != "" {
			algorithm = fmt.Sprintf("%s (%s)", r.Algorithm, r.Why)
		}
		age := "-"
		if r.AgeMS != nil {
			age = (time.Duration(*r.AgeMS) * time.Millisecond).String()
		}
		_, _ = fmt.Fprintf(w, "  %d\t%d\t%s\t%s\t%d\t%s\t%d\t%s\t%s\n", r.Rank, r.PID, r.State, r.Operation, r.Sequence, age, r.Bytes, algorithm, waiting)
	}
	_ = w.Flush()
}

// printDevice says how much of the windows is memory of the device, and which ranks share a GPU.
func printDevice(out io.Writer, g *membership.GroupInfo) {
	if g.Device == wire.DeviceCPU {
		return
	}
	var bytes uint64
	windows := 0
	for _, w := range g.Windows {
		if w.Memory != wire.MemoryCPU {
			bytes, windows = bytes+w.Bytes, windows+1
		}
	}
	_, _ = fmt.Fprintf(out, "  %d of these bytes in %d windows are %s memory, the kernels' scratch included\n", bytes, windows, g.Device)
	sharing := map[string][]int{}
	for _, r := range g.Ranks {
		if r.GPU != "" { // not known in a group that was taken over
			sharing[r.GPU] = append(sharing[r.GPU], r.Rank)
		}
	}
	for _, gpu := range slices.Sorted(maps.Keys(sharing)) {
		_, _ = fmt.Fprintf(out, "  %s: ranks %v\n", gpu, sharing[gpu])
	}
}

// ofMemory names memory that is not the CPU's.
func ofMemory(k wire.MemoryKind) string {
	if k == wire.MemoryCPU || k == 0 {
		return ""
	}
	return fmt.Sprintf(" of %s memory", k)
}

// busiestOf describes the load balance of a group's experts.
func busiestOf(m *membership.MoEInfo) string {
	if m.AvgLoad == 0 {
		return ""
	}
	return fmt.Sprintf("; busiest of %d experts: %d with %.0f copies, %.2f times the average", m.Experts, m.Busiest, m.MaxLoad, m.MaxLoad/m.AvgLoad)
}

// healthOf describes the health of a working group; of an idle one, for how long.
func healthOf(g *membership.GroupInfo) string {
	h := g.Health
	switch {
	case h == nil || g.State != membership.Ready:
		return ""
	case h.State == flight.Idle && h.AgeMS != nil:
		return fmt.Sprintf("; idle for %v", time.Duration(*h.AgeMS)*time.Millisecond)
	}
	return "; " + string(h.State)
}
