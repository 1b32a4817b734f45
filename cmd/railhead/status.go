package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"railhead/server"
	"railhead/server/flight"
	"railhead/server/membership"
)

const (
	statusTimeout  = 5 * time.Second
	maxAnswerBytes = 64 << 20
)

func statusCommand() *cobra.Command {
	var socket string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the daemon's groups: who is in them, what they do, why they broke",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			raw, err := fetchAdmin(cmd.Context(), "status", server.AdminSocketBeside(socket), "/v1/groups")
			if err != nil {
				return err
			}
			if asJSON {
				_, err := os.Stdout.Write(raw)
				return err
			}
			var s server.Status
			if err := json.Unmarshal(raw, &s); err != nil {
				return &exitError{status: exitFailed, err: fmt.Errorf("status: the daemon's answer: %w", err)}
			}
			printStatus(os.Stdout, s)
			return nil
		},
	}
	f := cmd.Flags()
	addAdminSocket(f, &socket)
	f.BoolVar(&asJSON, "json", false, "print the daemon's JSON")
	return cmd
}

func addAdminSocket(f *pflag.FlagSet, socket *string) {
	f.StringVar(socket, "socket", envOr("RAILHEAD_SOCKET", server.DefaultSocketPath()), "the daemon's socket [$RAILHEAD_SOCKET]; admin.sock lies beside it")
}

// fetchAdmin asks the daemon's admin endpoint for a command. A missing daemon has an exit status of its own.
func fetchAdmin(ctx context.Context, command, adminSocket, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	c := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", adminSocket)
		},
		DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://railhead"+path, nil)
	if err != nil {
		return nil, &exitError{status: exitFailed, err: err}
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, &exitError{status: exitNoDaemon, err: fmt.Errorf("no daemon answers at %s: start `railhead serve`, or set RAILHEAD_SOCKET (%w)", adminSocket, err)}
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	if err != nil {
		return nil, &exitError{status: exitFailed, err: fmt.Errorf("%s: %w", command, err)}
	}
	if len(raw) > maxAnswerBytes {
		return nil, &exitError{status: exitFailed, err: fmt.Errorf("%s: the daemon's answer has more than %d MiB; ask for less of it (`railhead %s --help`)",
			command, maxAnswerBytes>>20, command)}
	}
	if res.StatusCode != http.StatusOK {
		return nil, &exitError{status: exitFailed, err: fmt.Errorf("%s: the daemon says %s: %s", command, res.Status, strings.TrimSpace(string(raw)))}
	}
	return raw, nil
}

func printStatus(out io.Writer, s server.Status) {
	state := "serving"
	if s.Daemon.Draining {
		state = "draining"
	}
	_, _ = fmt.Fprintf(out, "railhead %s, pid %d, %s since %s, %d sessions at %s\n", s.Daemon.Version, s.Daemon.PID, state,
		s.Daemon.Started.Format(time.RFC3339), s.Daemon.Sessions, s.Daemon.Socket)
	switch t := s.Daemon.Tuning; {
	case t.Refused != "":
		_, _ = fmt.Fprintf(out, "tuning: not used: %s\n", t.Refused)
	case t.Entries > 0:
		_, _ = fmt.Fprintf(out, "tuning: %d entries for %s\n", t.Entries, t.Fingerprint)
	default:
		_, _ = fmt.Fprintf(out, "tuning: none for %s, default thresholds\n", t.Fingerprint)
	}
	if len(s.Groups) == 0 {
		_, _ = fmt.Fprintln(out, "no groups")
	}
	for i := range s.Groups {
		printGroup(out, &s.Groups[i])
	}
	for i := range s.Ended {
		g := &s.Ended[i]
		_, _ = fmt.Fprintf(out, "ended: group %q #%d: %s: %s\n", g.Name, g.Incarnation, g.Result, g.Cause)
	}
}

func printGroup(out io.Writer, g *membership.GroupInfo) {
	_, _ = fmt.Fprintf(out, "group %q #%d: %s, %d ranks, %d bytes in %d windows%s\n", g.Name, g.Incarnation, g.State, g.WorldSize,
		g.WindowBytes, len(g.Windows), healthOf(g))
	if h := g.Health; h != nil && h.State == flight.Stalled {
		_, _ = fmt.Fprintf(out, "  %s\n", h.Text)
	}
	if g.Forcing != "" && g.Forcing != "auto" || !g.Reproducible {
		_, _ = fmt.Fprintf(out, "  algorithms %q, reproducible %t\n", g.Forcing, g.Reproducible)
	}
	if !slices.IsSorted(g.Ring) {
		_, _ = fmt.Fprintf(out, "  rings go through ranks %v\n", g.Ring)
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
	for _, r := range g.Registered {
		how := "shared"
		if !r.Shared {
			how = fmt.Sprintf("staged: %q", r.Reason) // the rank's own words
		}
		_, _ = fmt.Fprintf(out, "  registered window %d, %d bytes: %s\n", r.Number, r.Bytes, how)
	}
	if m := g.MoE; m != nil {
		_, _ = fmt.Fprintf(out, "  MoE: %.0f tokens, %.0f copies, %.0f dropped%s\n", m.Tokens, m.Copies, m.Dropped, busiestOf(m))
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "  rank\tpid\tstate\toperation\tsequence\tfor\tbytes\tran last\twaiting for")
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

// busiestOf says how uneven the load of a group's experts is.
func busiestOf(m *membership.MoEInfo) string {
	if m.AvgLoad == 0 {
		return ""
	}
	return fmt.Sprintf("; of %d experts %d is the busiest, with %.0f copies, %.2f times the average", m.Experts, m.Busiest, m.MaxLoad, m.MaxLoad/m.AvgLoad)
}

// healthOf says how a group that works does, and for how long if it does nothing.
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
