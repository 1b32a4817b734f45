package client_test

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

// daemonSays asks the daemon for a group; the zero value where there is none.
func daemonSays(t testing.TB, s *server.Server, name string) groupState {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.AdminSocket())
	}}
	defer transport.CloseIdleConnections()
	reply, err := (&http.Client{Transport: transport, Timeout: patience}).Get("http://railhead/v1/groups")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reply.Body.Close() }()
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
