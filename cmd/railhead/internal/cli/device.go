package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// Values of --device.
const (
	DeviceCPU  = "cpu"
	DeviceCUDA = "cuda"
)

// AddDevice adds --device and --mps.
func AddDevice(cmd *cobra.Command, device *string, share *bool) {
	cmd.Flags().BoolVar(share, "mps", false, "on GPUs: let ranks share them, by a private MPS daemon")
	cmd.Flags().StringVar(device, "device", DeviceCPU, "where the ranks run: cpu, or cuda for the GPUs")
	Complete(cmd, "device", DeviceCPU, DeviceCUDA)
}

// CheckDevice checks --device and --mps.
func CheckDevice(device string, share bool) error {
	switch {
	case device != DeviceCPU && device != DeviceCUDA:
		return Usagef("--device %.40q is unknown; use %s or %s", device, DeviceCPU, DeviceCUDA)
	case share && device != DeviceCUDA:
		return Usagef("--mps is for GPUs: add --device cuda, or leave it out")
	}
	return nil
}

// RanksOn is "2 ranks on the CPU" or "2 ranks on GPUs".
func RanksOn(ranks int, device string) string {
	where := "the CPU"
	if device == DeviceCUDA {
		where = "GPUs"
	}
	return fmt.Sprintf("%d ranks on %s", ranks, where)
}
