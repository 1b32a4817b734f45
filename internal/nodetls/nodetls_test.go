package nodetls

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func authority(t *testing.T) (string, *Authority) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ca")
	a, err := CreateAuthority(dir, time.Now().Add(-24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return dir, a
}

// files writes a node's certificate and key.
func files(t *testing.T, a *Authority, node string, now time.Time, valid time.Duration) (certificate, key string) {
	t.Helper()
	certificatePEM, keyPEM, err := a.Issue(node, now, valid)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "node.pem"), filepath.Join(dir, "node-key.pem")
	if err := errors.Join(os.WriteFile(certificate, certificatePEM, 0o600), os.WriteFile(key, keyPEM, 0o600)); err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

func identity(t *testing.T, dir string, a *Authority, node string, now time.Time, valid time.Duration) *Identity {
	t.Helper()
	certificate, key := files(t, a, node, now, valid)
	id, err := LoadIdentity(certificate, key, filepath.Join(dir, AuthorityFile))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// connect returns the two ends of a connection.
func connect(t *testing.T) (server, client net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return server, client
}

// shake connects a client and a server. It returns whom each takes the other for, or the first error that each has met.
func shake(t *testing.T, server, client *tls.Config) (seen [2]string, errs [2]error) {
	t.Helper()
	here, there := connect(t)
	ends := [2]*tls.Conn{tls.Server(here, server), tls.Client(there, client)}
	done := make(chan struct{})
	end := func(i int) {
		c := ends[i]
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if errs[i] = c.Handshake(); errs[i] == nil {
			seen[i], errs[i] = Peer(c.ConnectionState())
		}
		if errs[i] == nil {
			// In TLS 1.3 a client learns only by reading whether the server has taken its certificate.
			if i == 0 {
				_, errs[i] = c.Write([]byte{1})
			} else {
				_, errs[i] = c.Read(make([]byte, 1))
			}
		}
		_ = c.NetConn().Close()
	}
	go func() { end(0); close(done) }()
	end(1)
	<-done
	return seen, errs
}

func TestTwoNodesKnowEachOther(t *testing.T) {
	dir, a := authority(t)
	one, two := identity(t, dir, a, "node-1", time.Now(), time.Hour), identity(t, dir, a, "node-2", time.Now(), time.Hour)
	seen, errs := shake(t, one.Server(), two.Client("node-1"))
	if errs[0] != nil || errs[1] != nil || seen != [2]string{"node-2", "node-1"} || two.Node() != "node-2" {
		t.Errorf("%q, %v", seen, errs)
	}
}

func TestStrangersGetNothing(t *testing.T) {
	dir, a := authority(t)
	otherDir, other := authority(t)
	good := identity(t, dir, a, "node-1", time.Now(), time.Hour)
	peer := identity(t, dir, a, "node-2", time.Now(), time.Hour)
	foreign := identity(t, otherDir, other, "node-2", time.Now(), time.Hour)
	expired := identity(t, dir, a, "node-2", time.Now().Add(-2*time.Hour), time.Hour)
	early := identity(t, dir, a, "node-2", time.Now().Add(2*time.Hour), time.Hour)
	// An impostor shows its certificate to whoever trusts the authority, and trusts anybody.
	impostor := func(id *Identity) *tls.Config {
		c := id.Client("node-1")
		c.InsecureSkipVerify = true
		return c
	}
	old := peer.Client("node-1")
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for _, c := range []struct {
		name           string
		server, client *tls.Config
		refusedBy      int // 0: the server, 1: the client
	}{
		{"a client without a certificate", good.Server(), &tls.Config{InsecureSkipVerify: true}, 0},
		{"a client of another authority", good.Server(), impostor(foreign), 0},
		{"a client whose certificate has expired", good.Server(), impostor(expired), 0},
		{"a client whose certificate is of the future", good.Server(), impostor(early), 0},
		{"a client with TLS 1.2", good.Server(), old, 0},
		{"a server of another authority", func() *tls.Config { c := foreign.Server(); c.ClientAuth = tls.RequestClientCert; return c }(), peer.Client("node-2"), 1},
		{"a server whose certificate has expired", expired.Server(), peer.Client("node-2"), 1},
		{"a server that is another node", good.Server(), peer.Client("node-3"), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen, errs := shake(t, c.server, c.client)
			if errs[c.refusedBy] == nil || errs[1] == nil || seen[c.refusedBy] != "" {
				t.Fatalf("it was taken for %q: %v", seen, errs)
			}
			if !strings.Contains(errs[c.refusedBy].Error(), "tls: ") {
				t.Errorf("refused after the handshake: %v", errs[c.refusedBy])
			}
		})
	}
}

func TestANodeWhoseClockIsBehindIsAdmitted(t *testing.T) {
	dir, a := authority(t)
	one := identity(t, dir, a, "node-1", time.Now(), time.Hour)
	ahead := identity(t, dir, a, "node-2", time.Now().Add(clockTolerance-time.Minute), time.Hour)
	if seen, errs := shake(t, one.Server(), ahead.Client("node-1")); errs[0] != nil || errs[1] != nil || seen[0] != "node-2" {
		t.Errorf("%q, %v", seen, errs)
	}
}

// A connection that was resumed shows no certificate, so its end would not matter.
func TestEachConnectionShowsItsCertificate(t *testing.T) {
	dir, a := authority(t)
	server, client := identity(t, dir, a, "node-1", time.Now(), time.Hour).Server(), identity(t, dir, a, "node-2", time.Now(), time.Hour).Client("node-1")
	client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	resumed := false
	client.VerifyConnection = func(s tls.ConnectionState) error { resumed = resumed || s.DidResume; return nil }
	for range 2 {
		if _, errs := shake(t, server, client); errs[0] != nil || errs[1] != nil {
			t.Fatal(errs)
		}
	}
	if resumed {
		t.Error("the second connection was resumed")
	}
}

func TestAnAuthorityIsMadeOnceAndItsKeyIsPrivate(t *testing.T) {
	dir, a := authority(t)
	for file, mode := range map[string]fs.FileMode{AuthorityKeyFile: 0o600, AuthorityFile: 0o644} {
		if info, err := os.Stat(filepath.Join(dir, file)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want %v", file, info.Mode(), err, mode)
		}
	}
	if _, err := CreateAuthority(dir, time.Now()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made again: %v", err)
	}
	again, err := LoadAuthority(dir)
	if err != nil || !again.certificate.Equal(a.certificate) {
		t.Errorf("another one was read: %v", err)
	}
}

func TestFilesThatDoNotBelongTogetherAreRefused(t *testing.T) {
	dir, a := authority(t)
	otherDir, other := authority(t)
	certificate, key := files(t, a, "node-1", time.Now(), time.Hour)
	_, otherKey := files(t, other, "node-1", time.Now(), time.Hour)
	for _, c := range []struct{ certificate, key, authority, want string }{
		{certificate, otherKey, filepath.Join(dir, AuthorityFile), "private key does not match"},
		{certificate, key, filepath.Join(otherDir, AuthorityFile), "is not of the authority"},
		{certificate, key, key, "there is no certificate in it"},
		{certificate, key, filepath.Join(dir, "none"), "no such file"},
		{filepath.Join(dir, AuthorityFile), filepath.Join(dir, AuthorityKeyFile), filepath.Join(dir, AuthorityFile), "a node's has one"},
	} {
		if _, err := LoadIdentity(c.certificate, c.key, c.authority); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if err := os.Rename(filepath.Join(otherDir, AuthorityKeyFile), filepath.Join(dir, AuthorityKeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadAuthority(dir); err == nil || !strings.Contains(err.Error(), "not the two files of one authority") {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, AuthorityFile), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadAuthority(dir); err == nil || !strings.Contains(err.Error(), "PEM block CERTIFICATE") {
		t.Error(err)
	}
}

func TestCertificatesThatCannotBeIssuedAreRefused(t *testing.T) {
	_, a := authority(t)
	for _, node := range []string{"", "a b", "A", "-a", "a-", "a.b", "*", "ä", strings.Repeat("a", 64)} {
		if _, _, err := a.Issue(node, time.Now(), time.Hour); err == nil || !strings.Contains(err.Error(), "1 to 63") {
			t.Errorf("%q: %v", node, err)
		}
	}
	for _, valid := range []time.Duration{0, -time.Hour, 11 * 365 * 24 * time.Hour} {
		if _, _, err := a.Issue("node-1", time.Now(), valid); err == nil || !strings.Contains(err.Error(), "certificate of node node-1") {
			t.Errorf("%v: %v", valid, err)
		}
	}
}
