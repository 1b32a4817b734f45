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

// AddDevice adds --device.
func AddDevice(cmd *cobra.Command, device *string) {
	cmd.Flags().StringVar(device, "device", DeviceCPU, "where the ranks run: cpu, or cuda for the GPUs")
	Complete(cmd, "device", DeviceCPU, DeviceCUDA)
}

// CheckDevice checks --device.
func CheckDevice(device string) error {
	if device != DeviceCPU && device != DeviceCUDA {
		return Usagef("--device %.40q is unknown; use %s or %s", device, DeviceCPU, DeviceCUDA)
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
