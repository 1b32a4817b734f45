// Command allgather picks a token from logits that are split over the vocabulary: each rank computes its part, and an all-gather gives
// every rank all of them.
//
//	railhead run --daemon -n 4 -- ./allgather
package main

import (
	"encoding/binary"
	"fmt"
	"os"

	"railhead/client"
)

const tokensOfRank = 1000

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() (err error) {
	session, err := client.Connect("", 0) // $RAILHEAD_SOCKET
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	comm, err := session.Init(client.CommConfig{Rank: -1, World: -1}) // rank and job come from the launcher
	if err != nil {
		return err
	}
	if err := pick(comm); err != nil {
		_ = comm.Abort() // the other ranks fail now instead of at their deadline
		_ = comm.Finalize()
		return err
	}
	return comm.Finalize()
}

func pick(comm *client.Comm) error {
	logits, err := gather(comm, logitsOf(comm.Rank()))
	if err != nil {
		return err
	}
	for token, l := range logits {
		if want := logit(token); l != want {
			return fmt.Errorf("rank %d: the logit of token %d is %g, not %g", comm.Rank(), token, l, want)
		}
	}
	best := 0
	for token, l := range logits {
		if l > logits[best] {
			best = token
		}
	}
	fmt.Printf("rank %d of %d: token %d of %d\n", comm.Rank(), comm.WorldSize(), best, len(logits))
	return nil
}

// gather returns the logits of all ranks, in rank order.
func gather(comm *client.Comm, mine []float32) ([]float32, error) {
	send, err := binary.Append(nil, binary.NativeEndian, mine)
	if err != nil {
		return nil, err
	}
	recv := make([]byte, comm.WorldSize()*len(send))
	if err := comm.AllGather(send, recv, len(mine), client.F32); err != nil {
		return nil, err
	}
	all := make([]float32, comm.WorldSize()*len(mine))
	_, err = binary.Decode(recv, binary.NativeEndian, all)
	return all, err
}

// logitsOf stands for a rank's part of the model's last layer.
func logitsOf(rank int) []float32 {
	l := make([]float32, tokensOfRank)
	for i := range l {
		l[i] = logit(rank*tokensOfRank + i)
	}
	return l
}

func logit(token int) float32 { return float32(token * 7919 % 1009) }
