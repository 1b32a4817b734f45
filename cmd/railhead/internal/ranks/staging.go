package ranks

import (
	"errors"

	"railhead/client"
	"railhead/internal/cuda"
)

// Staging copies between memory of the host and of a rank's GPU, through pinned memory that grows with the largest copy.
type Staging struct {
	gpu    *GPU
	comm   *client.Comm // whose calls are on the GPU's stream
	pinned []byte
}

// NewStaging makes a staging of a rank's GPU.
func NewStaging(gpu *GPU, comm *client.Comm) *Staging { return &Staging{gpu: gpu, comm: comm} }

// Put copies to the device, behind what is queued on the stream, and returns when that and the copy have run.
func Put[T any](s *Staging, to, from []T) error {
	memory := cuda.Bytes(from)
	if len(memory) == 0 {
		return nil
	}
	if err := s.grow(len(memory)); err != nil {
		return err
	}
	copy(s.pinned, memory)
	return errors.Join(s.gpu.Stream.Copy(cuda.Bytes(to), s.pinned[:len(memory)]), s.gpu.Wait(s.comm, 0))
}

// Get copies from the device in the same way.
func Get[T any](s *Staging, to, from []T) error {
	memory := cuda.Bytes(to)
	if len(memory) == 0 {
		return nil
	}
	if err := s.grow(len(memory)); err != nil {
		return err
	}
	err := errors.Join(s.gpu.Stream.Copy(s.pinned[:len(memory)], cuda.Bytes(from)), s.gpu.Wait(s.comm, 0))
	if err == nil {
		copy(memory, s.pinned)
	}
	return err
}

// End frees the pinned memory.
func (s *Staging) End() error {
	if s.pinned == nil {
		return nil
	}
	pinned := s.pinned
	s.pinned = nil
	return s.gpu.FreePinned(pinned)
}

func (s *Staging) grow(bytes int) (err error) {
	if len(s.pinned) >= bytes {
		return nil
	}
	if err := s.End(); err != nil {
		return err
	}
	s.pinned, err = s.gpu.AllocPinned(bytes)
	return err
}
