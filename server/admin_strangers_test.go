package server

import (
	"net"
	"net/http"
	"testing"
)

// Twice as many as an address has room for.
const halfOpen = 500

func TestHealthAnswersBesideStrangersWhoHoldAllConnections(t *testing.T) {
	s := startWithTCP(t)
	for _, at := range []struct{ network, addr string }{{"tcp", s.AdminAddr()}, {"unix", s.AdminSocket()}} {
		for i := range halfOpen {
			c, err := net.Dial(at.network, at.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			if i%2 == 1 {
				_, _ = c.Write([]byte("GET /li")) // fails if it has been closed already, in favour of later ones
			}
		}
	}
	for _, e := range endpoints(s) {
		paths := []string{"/livez", "/readyz", "/metrics"}
		if e.groups {
			paths = append(paths, "/v1/groups")
		}
		for _, path := range paths {
			if r := request(t, e.client, http.MethodGet, e.url+path); r.status != http.StatusOK {
				t.Errorf("%s: %s is %d: %s", e.what, path, r.status, r.body)
			}
		}
	}
}
