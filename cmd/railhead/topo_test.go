package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/engine/topo"
	"railhead/internal/gpus"
)

const topoFixture = "../../engine/topo/testdata/gb200-tray.xml"

func TestTopoShowsThisMachine(t *testing.T) {
	status, stdout, stderr := railhead(t, nil, "topo", "--output", "json")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	g, err := topo.ReadJSON(strings.NewReader(stdout))
	if err != nil {
		t.Fatal(err)
	}
	if len(g.OfKind(topo.Core)) == 0 {
		t.Errorf("no core in\n%s", stdout)
	}
	if _, same, _ := railhead(t, nil, "topo", "--json"); same != stdout {
		t.Errorf("--json is another format than --output json:\n%s", same)
	}
	fingerprint := g.Fingerprint()
	if !strings.Contains(stdout, `"fingerprint": "`+fingerprint+`"`) {
		t.Errorf("no fingerprint %s in\n%s", fingerprint, stdout)
	}
	if _, text, _ := railhead(t, nil, "topo"); !strings.HasPrefix(text, "fingerprint "+fingerprint+"\n") {
		t.Errorf("no fingerprint %s in\n%s", fingerprint, text)
	}
}

func TestTopoSaysWhyThereAreNoGPUs(t *testing.T) {
	m, err := gpus.ReadMachine()
	if err != nil {
		t.Fatal(err)
	}
	_, _, stderr := railhead(t, nil, "topo")
	if says := strings.Contains(stderr, "railhead: no GPUs: "); says != (len(m.OfKind(topo.GPU)) == 0) || !strings.Contains(stderr, m.NoGPUs) {
		t.Errorf("%d GPUs, %q: %q", len(m.OfKind(topo.GPU)), m.NoGPUs, stderr)
	}
}

func TestTopoConvertsAFileIntoEachFormat(t *testing.T) {
	for output, want := range map[string]string{
		"text": "gpu0 gpu1 gpu2 gpu3", "json": `"kind": "nvswitch"`, "xml": `<c2c bw="44712" count="5"/>`, "svg": `class="gpu"`,
	} {
		status, stdout, stderr := railhead(t, nil, "topo", "--file", topoFixture, "--output", output)
		if status != 0 || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("--output %s: status %d, %q, no %q in\n%s", output, status, stderr, want, stdout)
		}
	}
}

func TestTopoReadsItsOwnJSONAndXML(t *testing.T) {
	_, text, _ := railhead(t, nil, "topo", "--file", topoFixture)
	for _, format := range []string{"json", "xml"} {
		_, out, _ := railhead(t, nil, "topo", "--file", topoFixture, "--output", format)
		file := filepath.Join(t.TempDir(), "machine") // the content tells the format
		if err := os.WriteFile(file, bytes.Join([][]byte{nil, []byte(out)}, []byte("\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		if status, again, stderr := railhead(t, nil, "topo", "--file", file); status != 0 || again != text {
			t.Errorf("by way of %s: status %d %s\n%s\nnot\n%s", format, status, stderr, again, text)
		}
	}
}

func TestTopoSaysWhatIsWrongWithItsArguments(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--output", "png"}, cli.Usage, `"png"`},
		{[]string{"extra"}, cli.Usage, "extra"},
		{[]string{"--file", "/nonexistent"}, cli.Failed, "/nonexistent"},
		{[]string{"--file", empty}, cli.Failed, empty},
		{[]string{"--file", "topo_test.go"}, cli.Failed, "topo_test.go: topology JSON"},
	} {
		status, stdout, stderr := railhead(t, nil, append([]string{"topo"}, c.args...)...)
		if status != c.status || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("topo %q: status %d, stdout %q, stderr %q; want %d and %q", c.args, status, stdout, stderr, c.status, c.want)
		}
	}
}
