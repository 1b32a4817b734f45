package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

func TestTheFlagsSayWhichTokensAndWhichMPIs(t *testing.T) {
	o, err := parseFlags([]string{"--tokens", "1,64,7", "--mpi", "mpich", "--experts", "5", "--topk", "5"}, io.Discard)
	if err != nil || !slices.Equal(o.tokens, []int{1, 64, 7}) || !slices.Equal(o.mpis, []string{"mpich"}) {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestFlagsOutOfRangeAreRefusedByName(t *testing.T) {
	for _, c := range []string{
		"--ranks=1", "--ranks=65", "--tokens=0", "--tokens=1,,2", "--tokens=1048577", "--hidden=0", "--hidden=65537", "--experts=0",
		"--topk=0", "--topk=65", "--iterations=0", "--rounds=0", "--seconds=0", "--seconds=61", "--seconds=NaN", "--mpi=openmpi,other", "--plot=x.png",
	} {
		name, _, _ := strings.Cut(c, "=")
		if _, err := parseFlags([]string{c}, io.Discard); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", c, err)
		}
	}
	if _, err := parseFlags([]string{"--experts=4", "--topk=5"}, io.Discard); err == nil || !strings.Contains(err.Error(), "--topk 5: expected 1..4") {
		t.Errorf("more experts of a token than there are: %v", err)
	}
	if _, err := parseFlags([]string{"more"}, io.Discard); err == nil {
		t.Error("an argument was taken")
	}
}

func TestATokenTakesDifferentExpertsAndTheSameOnesForTheSameSeed(t *testing.T) {
	o := options{ranks: 3, tokens: []int{4, 50, 2}, hidden: 8, experts: 9, topK: 4, seed: 5}
	r := uniform(o)
	if r.tokens != 50 || len(r.idx) != 3*50*4 || len(r.weights) != len(r.idx) {
		t.Fatalf("%d tokens, %d experts, %d weights", r.tokens, len(r.idx), len(r.weights))
	}
	taken := map[int32]bool{}
	for at := 0; at < len(r.idx); at += 4 {
		sum := float32(0)
		for k := range 4 {
			e := r.idx[at+k]
			taken[e] = true
			sum += r.weights[at+k]
			if e < 0 || e > 8 || slices.Contains(r.idx[at:at+k], e) || r.weights[at+k] <= 0 {
				t.Fatalf("%v, %v", r.idx[at:at+4], r.weights[at:at+4])
			}
		}
		if sum < 0.99999 || sum > 1.00001 {
			t.Fatalf("weights %v", r.weights[at:at+4])
		}
	}
	if len(taken) != 9 {
		t.Errorf("600 entries name %d of 9 experts", len(taken))
	}
	if again := uniform(o); !slices.Equal(again.idx, r.idx) || !slices.Equal(again.weights, r.weights) {
		t.Error("another routing for the same seed")
	}
	o.seed++
	if other := uniform(o); slices.Equal(other.idx, r.idx) {
		t.Error("the same routing for another seed")
	}
}
