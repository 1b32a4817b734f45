package ranks

import (
	"encoding/json"
	"strings"
	"testing"

	"railhead/client"
)

type testJob struct{ N int }

func (*testJob) Run(*client.Comm, *json.Encoder) error { return nil }

func TestARankGetsTheJobThatItWasStartedWith(t *testing.T) {
	kind := Kind{Name: "b", New: func() Job { return new(testJob) }, Pinned: true}
	other := Kind{Name: "a", New: kind.New}
	env, err := JobEnv(kind, &testJob{N: 3})
	if err != nil {
		t.Fatal(err)
	}
	text, ok := strings.CutPrefix(env, jobVariable+"=")
	got, job, err := decode(text, []Kind{other, kind})
	if err != nil || !ok || got.Name != "b" || !got.Pinned || job.(*testJob).N != 3 {
		t.Errorf("%+v, %+v, %v from %s", got, job, err, env)
	}
}

func TestAJobThatCannotBeReadIsAnError(t *testing.T) {
	kind := Kind{Name: "b", New: func() Job { return new(testJob) }}
	for text, want := range map[string]string{
		"": "started by", "{}": "no job of a known kind", `{"c":{}}`: "no job of a known kind", `{"b":{"N":"many"}}`: "RAILHEAD_JOB: b: json",
	} {
		if _, _, err := decode(text, []Kind{kind}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
