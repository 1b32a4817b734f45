package harness

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"testing"

	"railhead/internal/await"
	"railhead/server"
)

// GroupState is a group in an answer of the daemon's admin endpoint.
type GroupState struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Ranks      []any  `json:"ranks"`
	WaitingIn  string `json:"waiting_in"`
	WaitingFor []int  `json:"waiting_for"`
}

// AskDaemon gets a path of the admin endpoint. The caller must call done.
func AskDaemon(t testing.TB, s *server.Server, path string) (reply *http.Response, done func()) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.AdminSocket())
	}}
	reply, err := (&http.Client{Transport: transport, Timeout: await.Patience}).Get("http://railhead" + path)
	if err != nil {
		transport.CloseIdleConnections()
		t.Fatal(err)
	}
	return reply, func() {
		_ = reply.Body.Close()
		transport.CloseIdleConnections()
	}
}

// Groups returns all groups of the daemon.
func Groups(t testing.TB, s *server.Server) []GroupState {
	t.Helper()
	reply, done := AskDaemon(t, s, "/v1/groups")
	defer done()
	var all struct {
		Groups []GroupState `json:"groups"`
	}
	if err := json.NewDecoder(reply.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	return all.Groups
}

// DaemonSays asks the daemon for a group. If there is none, it returns the zero value.
func DaemonSays(t testing.TB, s *server.Server, name string) GroupState {
	t.Helper()
	for _, g := range Groups(t, s) {
		if g.Name == name {
			return g
		}
	}
	return GroupState{}
}

// RanksThatCame is the number of ranks that have joined a group.
func RanksThatCame(t testing.TB, s *server.Server, name string) int {
	t.Helper()
	return len(DaemonSays(t, s, name).Ranks)
}
