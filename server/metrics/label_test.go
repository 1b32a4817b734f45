package metrics

import "testing"

func TestALabelHasNothingThatDiffersInEachRun(t *testing.T) {
	for name, want := range map[string]string{
		"tp":                            "tp",
		"tp-16":                         "tp-16",
		"a/b":                           "a/b",
		"run-0123456789abcdef":          "run",
		"railhead-0123456789abcdef":     "railhead",
		"torchrun/none/127.0.0.1/29500": "torchrun",
		"slurm/1234/0":                  "slurm",
		"openmpi/0123456789abcdef":      "openmpi",
		"pmi/1234.0":                    "pmi",
		"tp/6a1f0c3e40.2.1":             "tp/2.1",
		"slurm/1234/0/6a1f0c3e40.0.3":   "slurm/0.3",
		"split/6a1f0c3e40.a.12":         "split/a.12",
		"a/6a1.0.1/6a2.1.0":             "a/0.1/1.0",
		"a\xff":                         "a?",
		"slurmy":                        "slurmy",
		"run-0123456789abcdeg":          "run-0123456789abcdeg",
	} {
		if got := groupLabel(name); got != want {
			t.Errorf("group %q has the label %q, want %q", name, got, want)
		}
	}
}
