package tests

import (
	"testing"

	"railhead/client"
	"railhead/internal/deep"
)

func TestManyGroupsDoNotLeak(t *testing.T) {
	s := startDaemon(t)
	life := func() {
		ranks := formGroup(t, s, client.CommConfig{World: 2})
		all(t, ranks, func(m member) error {
			w, err := m.AllocWindow(200_000)
			if err != nil {
				return err
			}
			b, err := w.Local()
			if err != nil {
				return err
			}
			clear(b)
			if err := m.Barrier(); err != nil {
				return err
			}
			return w.Free()
		})
		all(t, ranks, finalize)
		all(t, ranks, closeSession)
	}
	nothingLeaks(t, func() {
		for range deep.Rounds(t, 100, 300) {
			life()
		}
	})
}

func TestGroupsThatEndByClosesAbortsOrWithoutFreeDoNotLeak(t *testing.T) {
	s := startDaemon(t)
	nothingLeaks(t, func() {
		for i := range 100 {
			ranks := formGroup(t, s, client.CommConfig{World: 3})
			all(t, ranks, func(m member) error { _, err := m.AllocWindow(70_000); return err })
			switch i % 3 {
			case 0: // also ends the comm and the window
				_ = ranks[1].session.Close()
			case 1:
				_ = ranks[1].Abort()
			case 2: // without freeing the window
				all(t, ranks, finalize)
			}
			for _, m := range ranks {
				_ = m.Finalize()
				_ = m.session.Close()
			}
		}
	})
}
