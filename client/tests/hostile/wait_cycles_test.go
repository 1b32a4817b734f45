package hostile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/rank"
	"railhead/internal/wire"
)

// waits is what a rank's line says of a rank that sleeps in an all-reduce.
type waits struct {
	on    rank.Local // the rank that it waits for; None: it runs
	begun uint64     // operations that it has begun
	since uint64     // when it went to sleep
}

// write writes the line of a rank.
func (w waits) write(t testing.TB, control, world, r int) {
	line := wire.RankLine{Seq: w.begun, Op: wire.OpAllReduce, WaitingFor: rank.Of(w.on), AsleepSince: w.since, Rank: rank.World(r)}
	var b bytes.Buffer
	err := binary.Write(&b, binary.LittleEndian, &line)
	if err == nil {
		_, err = unix.Pwrite(control, b.Bytes(), int64(wire.PartsOf(world).Lines.At(r)))
	}
	if err != nil {
		t.Error(err)
	}
}

// Rank 0 waits for ranks that do not call. Their lines say that they wait for each other, as after one of them was stopped in its sleep and what
// it waited for has come. That one is named.
func TestADeadlineNamesTheStaleRankOfACycleOfWaits(t *testing.T) {
	const world = 4
	cases := []struct {
		what  string
		lines []waits // of ranks 1 to 3; those that are not given call nothing
		want  int
	}{
		{"the first has begun fewer operations", []waits{{2, 4, 200}, {1, 5, 100}}, 1},
		{"the second has begun fewer operations", []waits{{2, 5, 100}, {1, 4, 200}}, 2},
		{"the first went to sleep first", []waits{{2, 4, 100}, {1, 4, 200}}, 1},
		{"the second went to sleep first", []waits{{2, 4, 200}, {1, 4, 100}}, 2},
		{"a cycle that the late rank is not in", []waits{{2, 1, 1}, {3, 5, 200}, {2, 4, 300}}, 3},
		{"a cycle over rank 0", []waits{{2, 4, 200}, {3, 4, 100}, {0, 4, 300}}, 2},
		{"a rank outside the group", []waits{{2, 4, 200}, {5, 1, 100}}, 1},
		{"no cycle", []waits{{2, 4, 100}, {3, 4, 200}}, 3},
		{"a rank that runs", []waits{{2, 4, 100}, {rank.None, 4, 200}}, 2},
	}
	errs := inParallel(len(cases), func(i int) error { // because each waits for its deadline
		formed := fakeGroup(world, nil, nil)
		path := startFake(t, func(f *fake, turn int, answers []answer) []answer {
			answers = formed(f, turn, answers)
			if turn == turnJoin {
				for r, w := range cases[i].lines {
					w.write(t, answers[0].fds[0], world, 1+r)
				}
			}
			return answers
		})
		session, err := client.Connect(path, patience)
		if err != nil {
			return err
		}
		defer func() { _ = session.Close() }()
		comm, err := session.Init(client.CommConfig{Group: "fake", Rank: 0, World: world, Timeout: 300 * time.Millisecond})
		if err != nil {
			return err
		}
		buf := make([]byte, 4)
		err = comm.AllReduce(buf, buf, 1, client.F32, client.Sum)
		wantError(t, err, wire.ResultTimeout, fmt.Sprintf("rank %d (pid", cases[i].want))
		if st, err := comm.Status(); err != nil || int(st.Culprit) != cases[i].want {
			return fmt.Errorf("culprit %d, %v; want %d", st.Culprit, err, cases[i].want)
		}
		return nil
	})
	for i, c := range cases {
		if errs[i] != nil {
			t.Errorf("%s: %v", c.what, errs[i])
		}
	}
}
