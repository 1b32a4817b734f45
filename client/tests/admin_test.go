package tests

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"testing"

	"railhead/server"
)

// groupState is what the daemon's admin endpoint says of a group that is held by somebody.
type groupState struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Ranks      []any  `json:"ranks"`
	WaitingIn  string `json:"waiting_in"`
	WaitingFor []int  `json:"waiting_for"`
}

// askDaemon returns an answer of the admin endpoint, and what ends it.
func askDaemon(t testing.TB, s *server.Server, path string) (reply *http.Response, done func()) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.AdminSocket())
	}}
	reply, err := (&http.Client{Transport: transport, Timeout: patience}).Get("http://railhead" + path)
	if err != nil {
		transport.CloseIdleConnections()
		t.Fatal(err)
	}
	return reply, func() {
		_ = reply.Body.Close()
		transport.CloseIdleConnections()
	}
}

// daemonSays asks the daemon for a group; the zero value where there is none.
func daemonSays(t testing.TB, s *server.Server, name string) groupState {
	t.Helper()
	reply, done := askDaemon(t, s, "/v1/groups")
	defer done()
	var all struct {
		Groups []groupState `json:"groups"`
	}
	if err := json.NewDecoder(reply.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	for _, g := range all.Groups {
		if g.Name == name {
			return g
		}
	}
	return groupState{}
}

func ranksThatCame(t testing.TB, s *server.Server, name string) int {
	t.Helper()
	return len(daemonSays(t, s, name).Ranks)
}
