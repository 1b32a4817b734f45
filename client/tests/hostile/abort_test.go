package hostile

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/wire"
)

// Every rank can write the abort word. Whatever its value, a call that did not run must fail.
func TestAnAbortWordWithoutAValidResultIsAProtocolError(t *testing.T) {
	for _, word := range []byte{0, 251} {
		path := startFake(t, inTurn(turnJoin, func(f *fake, answers []answer) []answer {
			if _, err := unix.Pwrite(answers[0].fds[0], []byte{word, 1}, wire.AbortOffset); err != nil {
				f.t.Error(err)
			}
			return answers
		}))
		c, leave := joinFake(t, path, 1)
		wantError(t, c.Barrier(), wire.ResultProtocol, "rank 0 of group \"fake\"", "abort word")
		if st, err := c.Status(); err != nil || st.Result != wire.ResultProtocol {
			t.Errorf("status: %+v, %v", st, err)
		}
		leave()
	}
}

// Ranks look at the lower half alone, so the upper half alone breaks nothing, and must not keep a cause out.
func TestAnAbortIsNotLostWhereARankHasSetTheUpperHalfOfTheWord(t *testing.T) {
	path := startFake(t, inTurn(turnJoin, func(f *fake, answers []answer) []answer {
		if _, err := unix.Pwrite(answers[0].fds[0], []byte{7, 0, 0, 1}, wire.AbortOffset+4); err != nil {
			f.t.Error(err)
		}
		return answers
	}))
	c, leave := joinFake(t, path, 1)
	defer leave()
	if err := errors.Join(c.Barrier(), c.Abort()); err != nil {
		t.Fatal(err)
	}
	wantError(t, c.Barrier(), wire.ResultAborted, "rank 0 of group \"fake\"", "rh_comm_abort")
}

func finalizeOfABrokenGroupDoesNotWaitForAHungDaemon(t *testing.T) {
	path := startFake(t, func(_ *fake, turn int, answers []answer) []answer {
		if turn > turnAttached {
			return nil
		}
		return answers
	})
	c, leave := joinFake(t, path, 1)
	defer leave()
	if err := c.Abort(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := c.Finalize(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > patience/2 { // finalize's deadline is longer than patience
		t.Errorf("finalize took %v", took)
	}
}

// The daemon does not answer the split's Join, and the parent group is aborted.
func TestASplitEndsWhenItsParentGroupBreaks(t *testing.T) {
	path := startFake(t, func(_ *fake, turn int, answers []answer) []answer {
		if turn == turnWindowAlloc { // the third message after Hello: the split's Join
			return nil
		}
		return answers
	})
	session, err := client.Connect(path, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	c, err := session.Init(client.CommConfig{Group: "tp", Rank: 0, World: 1, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(50 * time.Millisecond)
		_ = c.Abort()
	}()
	began := time.Now()
	_, err = c.Split(0, 0)
	wantError(t, err, wire.ResultAborted, "rank 0", "rh_comm_abort")
	if took := time.Since(began); took > patience/2 {
		t.Errorf("split took %v", took)
	}
}
