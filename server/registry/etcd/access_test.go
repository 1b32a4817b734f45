package etcd

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"railhead/internal/nodetls"
)

// issue writes a certificate of an authority for a name, and returns the directory.
func issue(t *testing.T, a *nodetls.Authority, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := a.IssueTo(dir, name, time.Now(), time.Hour, false); err != nil {
		t.Fatal(err)
	}
	return dir
}

func authority(t *testing.T) *nodetls.Authority {
	t.Helper()
	a, err := nodetls.CreateAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// secured is an etcd that asks for certificates of an authority.
func secured(t *testing.T, a *nodetls.Authority) *server {
	t.Helper()
	s := prepareServer(t, "https", "localhost")
	dir := issue(t, a, "localhost")
	s.flags = []string{
		"--cert-file", filepath.Join(dir, nodetls.NodeFile), "--key-file", filepath.Join(dir, nodetls.NodeKeyFile),
		"--client-cert-auth", "--trusted-ca-file", filepath.Join(dir, nodetls.AuthorityFile),
	}
	s.start()
	return s
}

func TestEtcdIsReachedByTLSWithACertificate(t *testing.T) {
	t.Parallel()
	a, other := authority(t), authority(t)
	s := secured(t, a)
	client, foreign := issue(t, a, "client"), issue(t, other, "client")
	for _, c := range []struct {
		name, dir string
		without   bool // a certificate
		want      string
	}{
		{"a client of the authority", client, false, ""},
		{"a client without a certificate", client, true, "tls: "},
		{"a client of another authority, which does not know etcd's", foreign, false, "certificate signed by unknown authority"},
	} {
		t.Run(c.name, func(t *testing.T) {
			certificate, key := filepath.Join(c.dir, nodetls.NodeFile), filepath.Join(c.dir, nodetls.NodeKeyFile)
			if c.without {
				certificate, key = "", ""
			}
			config, err := LoadTLS(filepath.Join(c.dir, nodetls.AuthorityFile), certificate, key)
			if err != nil {
				t.Fatal(err)
			}
			r := openWith(t, Config{Cluster: "c", Node: "a", Endpoints: []string{s.endpoint}, TLS: config, Lease: testLease})
			told := r.node(1, "10.0.0.1:1")
			if r.healthy(c.want); c.want == "" {
				registered(t, told)
			} else if len(told) > 0 || len(r.Nodes()) > 0 {
				t.Errorf("told %v, sees %v", <-told, r.Nodes())
			}
		})
	}
}

func TestFilesForTLSThatAreWrongAreRefused(t *testing.T) {
	dir, other := issue(t, authority(t), "a"), issue(t, authority(t), "a")
	file := func(dir, name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct{ authority, certificate, key, want string }{
		{file(dir, "none"), "", "", "no such file"},
		{file(dir, nodetls.NodeKeyFile), "", "", "there is no certificate in it"},
		{file(dir, nodetls.AuthorityFile), file(dir, nodetls.NodeFile), "", "open : no such file"},
		{file(dir, nodetls.AuthorityFile), file(dir, nodetls.NodeFile), file(other, nodetls.NodeKeyFile), "private key does not match"},
	} {
		if _, err := LoadTLS(c.authority, c.certificate, c.key); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

func TestEtcdAsksForAUserAndAPassword(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.admin()
	for name, call := range map[string]func(ctx context.Context) error{
		"root": func(ctx context.Context) error { _, err := c.UserAdd(ctx, "root", "secret"); return err },
		"user": func(ctx context.Context) error { _, err := c.UserAdd(ctx, "railhead", "password"); return err },
		"role": func(ctx context.Context) error { _, err := c.RoleAdd(ctx, "railhead"); return err },
	} {
		try(t, name, call)
	}
	try(t, "grants", func(ctx context.Context) error {
		_, err1 := c.RoleGrantPermission(ctx, "railhead", "/railhead/c/", "/railhead/c0", clientv3.PermissionType(clientv3.PermReadWrite))
		_, err2 := c.UserGrantRole(ctx, "railhead", "railhead")
		_, err3 := c.UserGrantRole(ctx, "root", "root")
		return errors.Join(err1, err2, err3)
	})
	try(t, "auth", func(ctx context.Context) error { _, err := c.AuthEnable(ctx); return err })
	with := func(node, cluster, user, password string) *opened {
		return openWith(t, Config{Cluster: cluster, Node: node, Endpoints: []string{s.endpoint}, User: user, Password: password, Lease: testLease})
	}
	a := with("a", "c", "railhead", "password")
	registered(t, a.node(1, "10.0.0.1:1"))
	for want, r := range map[string]*opened{
		"authentication failed": with("b", "c", "railhead", "wrong"),
		"user name is empty":    with("b", "c", "", ""),
		"permission denied":     with("b", "other", "railhead", "password"), // a cluster that is not its user's
		"etcd at " + s.endpoint: with("b", "c", "nobody", "password"),
	} {
		told := r.node(2, "10.0.0.2:1")
		r.healthy(want)
		if len(told) > 0 || len(r.Nodes()) > 0 {
			t.Errorf("%s: told %v, sees %v", want, <-told, r.Nodes())
		}
	}
	// After a restart etcd does not know the tokens that it has given out.
	s.kill()
	a.healthy("connection refused")
	s.start()
	a.healthy("")
	registered(t, a.agent("x", 3))
	late := with("d", "c", "railhead", "password")
	late.sees("a=10.0.0.1:1/1", "x@a/3")
}
