package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/nodetls"
)

func TestCertsMakesWhatANodeNeeds(t *testing.T) {
	dir := t.TempDir()
	ca, out := filepath.Join(dir, "ca"), filepath.Join(dir, "node-1")
	status, stdout, stderr := railhead(t, nil, "certs", "authority", "--dir", ca)
	if status != 0 || stderr != "" || !strings.Contains(stdout, ca+"/ca.pem: certificate, each node gets a copy\n"+ca+"/ca-key.pem: key") {
		t.Fatalf("status %d, %q, %q", status, stdout, stderr)
	}
	status, stdout, stderr = railhead(t, nil, "certs", "node", "node-1", "--dir", ca, "--out", out)
	year := time.Now().Add(8760 * time.Hour).UTC().Format(time.DateOnly)
	if status != 0 || stderr != "" || !strings.HasPrefix(stdout, "node node-1, valid until "+year+"\n"+out+"/node.pem: certificate\n"+out+"/node-key.pem: key") {
		t.Fatalf("status %d, %q, %q", status, stdout, stderr)
	}
	id, err := nodetls.LoadIdentity(filepath.Join(out, nodetls.NodeFile), filepath.Join(out, nodetls.NodeKeyFile), filepath.Join(ca, nodetls.AuthorityFile))
	if err != nil || id.Node() != "node-1" {
		t.Error(id, err)
	}
}

func TestCertsReportsItsFilesAsJSON(t *testing.T) {
	dir := t.TempDir()
	ca, out := filepath.Join(dir, "ca"), filepath.Join(dir, "out")
	for _, c := range []struct {
		args  []string
		files map[string]string // by their names in the report
		valid time.Duration
	}{
		{[]string{"authority", "--dir", ca}, map[string]string{"certificate": ca + "/ca.pem", "key": ca + "/ca-key.pem"}, 10 * 365 * 24 * time.Hour},
		{
			[]string{"node", "a", "--dir", ca, "--out", out, "--valid", "48h"},
			map[string]string{"certificate": out + "/node.pem", "key": out + "/node-key.pem", "authority": out + "/ca.pem", "node": "a"}, 48 * time.Hour,
		},
	} {
		began := time.Now()
		status, stdout, stderr := railhead(t, nil, append(append([]string{"certs"}, c.args...), "--json")...)
		var got map[string]string
		if err := json.Unmarshal([]byte(stdout), &got); status != 0 || stderr != "" || err != nil {
			t.Fatalf("%q: status %d, %v, %q, %q", c.args, status, err, stdout, stderr)
		}
		until, err := time.Parse(time.RFC3339, got["valid_until"])
		if late := until.Sub(began.Add(c.valid)); err != nil || late < -2*time.Second || late > 96*time.Hour { // leap days of an authority's years
			t.Errorf("%q: valid until %q, %v", c.args, got["valid_until"], err)
		}
		delete(got, "valid_until")
		if len(got) != len(c.files) {
			t.Errorf("%q: %q", c.args, got)
		}
		for name, want := range c.files {
			if got[name] != want {
				t.Errorf("%q: %s is %q, want %q", c.args, name, got[name], want)
			}
			if _, err := os.Stat(want); name != "node" && err != nil {
				t.Error(err)
			}
		}
	}
}

func TestCertsReplacesFilesOnlyByForce(t *testing.T) {
	dir := t.TempDir()
	ca, out := filepath.Join(dir, "ca"), filepath.Join(dir, "out")
	authority, node := []string{"certs", "authority", "--dir", ca}, []string{"certs", "node", "a", "--dir", ca, "--out", out}
	for _, c := range []struct {
		args  []string
		file  string // of those that are made
		error string
	}{
		{authority, ca + "/ca-key.pem", "ca-key.pem: file already exists: with --force it is replaced, and every node needs a new certificate"},
		{node, out + "/node-key.pem", "node-key.pem: file already exists: with --force it is replaced"},
	} {
		if status, _, stderr := railhead(t, nil, c.args...); status != 0 {
			t.Fatal(stderr)
		}
		first, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		status, stdout, stderr := railhead(t, nil, c.args...)
		if again, err := os.ReadFile(c.file); err != nil || string(again) != string(first) {
			t.Errorf("%q: %s was replaced, %v", c.args, c.file, err)
		}
		if status != cli.Failed || stdout != "" || !strings.Contains(stderr, c.error) {
			t.Errorf("%q: status %d, %q, %q", c.args, status, stdout, stderr)
		}
		if status, _, stderr := railhead(t, nil, append(c.args, "--force")...); status != 0 {
			t.Errorf("%q: status %d, %q", c.args, status, stderr)
		}
		if again, err := os.ReadFile(c.file); err != nil || string(again) == string(first) {
			t.Errorf("%q: %s was not replaced, %v", c.args, c.file, err)
		}
	}
}

func TestCertsSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca")
	if status, _, stderr := railhead(t, nil, "certs", "authority", "--dir", ca); status != 0 {
		t.Fatal(stderr)
	}
	out := filepath.Join(dir, "out")
	for _, c := range []struct {
		status int
		error  string
		args   []string
	}{
		{cli.Usage, "certs: no command given; available: authority, node", nil},
		{cli.Usage, "certs authority: --dir is missing", []string{"authority"}},
		{cli.Usage, "certs node takes the name of one node, got []", []string{"node", "--dir", ca, "--out", out}},
		{cli.Usage, `certs node takes the name of one node, got ["a" "b"]`, []string{"node", "a", "b", "--dir", ca, "--out", out}},
		{cli.Usage, "certs node: --dir is missing", []string{"node", "a", "--out", out}},
		{cli.Usage, "certs node: --out is missing", []string{"node", "a", "--dir", ca}},
		{cli.Usage, "certs node: --valid 0s is not above 0", []string{"node", "a", "--dir", ca, "--out", out, "--valid", "0"}},
		{cli.Usage, `certs node: node "A": a name has 1 to 63 of`, []string{"node", "A", "--dir", ca, "--out", out}},
		{cli.Failed, "certs node: certificate of node a: valid for 200000h0m0s: must be above 0, and the authority's ends on", []string{"node", "a", "--dir", ca, "--out", out, "--valid", "200000h"}},
		{cli.Failed, "certs node: authority: open " + out + "/ca.pem: no such file", []string{"node", "a", "--dir", out, "--out", out}},
		{cli.Failed, "certs authority: authority: mkdir " + ca + "/ca.pem: not a directory", []string{"authority", "--dir", ca + "/ca.pem/x"}},
	} {
		status, stdout, stderr := railhead(t, nil, append([]string{"certs"}, c.args...)...)
		if status != c.status || !strings.Contains(stderr, c.error) || stdout != "" && c.args != nil {
			t.Errorf("%q: status %d, stdout %q, stderr %q, want %q", c.args, status, stdout, stderr, c.error)
		}
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("a refused command made %s: %v", out, err)
	}
}
